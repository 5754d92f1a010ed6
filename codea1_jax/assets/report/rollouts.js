// Rollouts: reading them, their verdicts, and the list of problems.

async function unpack(id) {
  const binary = atob(byId(id).textContent);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const KEPT_STEPS = 8;
const opened = new Map(); // "run-step" -> promise of problems; the last few only

function problemsAt(r, step) {
  if (!runs[r].rollout_steps.includes(step)) return Promise.resolve([]);
  const key = `${r}-${step}`;
  const known = opened.get(key) ?? unpack(`rollouts-${key}`);
  opened.delete(key);
  opened.set(key, known);
  if (opened.size > KEPT_STEPS) opened.delete(opened.keys().next().value);
  return known;
}

let indexPromise = null;
const problemIndex = () => (indexPromise ??= unpack("index"));

// kind -> [sign, words]; the sign says it without colour.
const KINDS = {
  pass: ["\u2713", "the code passes"],
  fail: ["\u2715", "the code fails"],
  unknown: ["?", "no verdict"],
  wrong_answer: ["\u2260", "predicted answer is wrong, not run"],
  invalid: ["\u2013", "no valid test"],
  duplicate: ["=", "duplicate"],
  not_executed: ["\u00b7", "not run"],
};
const kindOf = (verdict) =>
  verdict.split(":", 1)[0] in KINDS ? verdict.split(":", 1)[0] : "not_executed";
const reasonOf = (verdict) => verdict.split(": ").slice(1).join(": ");

function statementKind(statement, suite, m) {
  const verdict = statement.verdicts[suite.targets.indexOf(m)];
  if (verdict) return kindOf(verdict);
  return statement.status === "valid"
    ? "not_executed"
    : statement.status in KINDS
      ? statement.status
      : "invalid";
}

// A test with a wrong predicted answer may be run all the same, against the reference's answer.
const WRONG = "the predicted answer is wrong";
const isRunThoughWrong = (statement, kind) =>
  statement.status === "wrong_answer" && kind !== "wrong_answer";

// Suites by code: in Code-A1 every suite aims at one code, in self-play at all.
function suitesOf(problem) {
  const rows = problem.codes.map(() => []);
  problem.groups.forEach((group, g) =>
    group.suites.forEach((suite, n) => {
      for (const m of suite.targets) rows[m].push({ g, n, suite, selected: group.selected });
    }),
  );
  return rows;
}

function kindsOf(problem) {
  const rows = suitesOf(problem);
  return problem.codes.map((one, m) =>
    one.history
      .map(kindOf)
      .concat(
        rows[m].flatMap(({ suite }) => suite.statements.map((s) => statementKind(s, suite, m))),
      ),
  );
}

const FILTERS = {
  all: () => true,
  fail: (p) => kindsOf(p).flat().includes("fail"),
  unknown: (p) => kindsOf(p).flat().includes("unknown") || p.codes.some((c) => c.valid === null),
  history: (p) => p.history.length > 0,
  invalid: (p) => p.codes.some((c) => c.valid === false),
};

function thumbnail(problem) {
  const rows = kindsOf(problem);
  const size = 4,
    width = Math.max(1, ...rows.map((row) => row.length));
  const canvas = el("canvas", {
    width: width * size,
    height: rows.length * size,
    "aria-hidden": "true",
  });
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const colors = Object.fromEntries(
    Object.keys(KINDS).map((kind) => [kind, style.getPropertyValue(`--${kind}`)]),
  );
  rows.forEach((row, y) =>
    row.forEach((kind, x) => {
      context.fillStyle = colors[kind];
      context.fillRect(x * size, y * size, size - 1, size - 1);
    }),
  );
  return canvas;
}

const PAGE = 50;
const state = { step: lastStep, problem: null, page: 0, listTurn: 0, problemTurn: 0, timer: 0 };

function mean(values) {
  const known = values.filter((v) => v !== null && v !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

const known = (items) => items.filter((item) => !item.masked).map((item) => item.reward);
const firstLine = (text) => visible(text.trim().split("\n", 1)[0].slice(0, 120));

async function drawList() {
  const turn = ++state.listTurn; // an older drawing must not overwrite a newer one
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const filter = byId("filter");
  filter.disabled = words.length > 0;
  if (words.length) {
    const hits = (await problemIndex()).filter((entry) => {
      const text = `${entry.id}\n${entry.question}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    if (turn !== state.listTurn) return;
    showList(hits, `${hits.length} problem(s) found in any step`, (entry) => [
      ["problem", problemButton(entry.id, entry.question)],
      [
        "steps",
        runs.map((run, r) =>
          el(
            "div",
            {},
            runs.length > 1 ? `${visible(run.name)}: ` : "",
            entry.runs[r].slice(0, 12).map(([step]) => [
              el(
                "button",
                {
                  type: "button",
                  class: "link",
                  "aria-label": `step ${step}, ${visible(entry.id)}`,
                  click: () => {
                    setStep(step, false);
                    openProblem(entry.id);
                  },
                },
                String(step),
              ),
              " ",
            ]),
            entry.runs[r].length ? "" : "\u2013",
            entry.runs[r].length > 12 ? `and ${entry.runs[r].length - 12} more` : "",
          ),
        ),
      ],
    ]);
    return;
  }
  byId("list-status").textContent = `Opening step ${state.step}`;
  const found = await Promise.all(runs.map((run, r) => problemsAt(r, state.step)));
  if (turn !== state.listTurn) return;
  const byProblem = new Map();
  found.forEach((problems, r) =>
    problems.filter(FILTERS[filter.value]).forEach((problem) => {
      if (!byProblem.has(problem.id))
        byProblem.set(
          problem.id,
          runs.map(() => null),
        );
      byProblem.get(problem.id)[r] = problem;
    }),
  );
  const rows = [...byProblem.values()];
  const total = new Set(found.flat().map((problem) => problem.id)).size;
  const status = total
    ? `Step ${state.step}: ${rows.length} of ${total} problems`
    : `No rollouts of step ${state.step} in this file`;
  showList(rows, status, (entries) => {
    const one = entries.find(Boolean);
    const cells = [["problem", problemButton(one.id, one.question)]];
    entries.forEach((problem, r) => {
      const side = runs.length > 1 ? `, ${visible(runs[r].name)}` : "";
      const suites = problem ? problem.groups.flatMap((g) => g.suites) : [];
      cells.push(
        [`coder reward${side}`, problem ? reward(mean(known(problem.codes))) : "\u2013"],
        [`tester reward${side}`, problem ? reward(mean(known(suites))) : "\u2013"],
        [`remembered${side}`, problem ? String(problem.history.length) : "\u2013"],
        [`verdicts${side}`, problem ? thumbnail(problem) : "\u2013"],
      );
    });
    return cells;
  });
}

function problemButton(id, question) {
  return el(
    "button",
    { type: "button", class: "link open", click: () => openProblem(id) },
    el("b", {}, visible(id)),
    ` ${firstLine(question)}`,
  );
}

function showList(items, status, cells) {
  state.page = Math.min(state.page, Math.max(0, Math.ceil(items.length / PAGE) - 1));
  const from = state.page * PAGE;
  const page = items.slice(from, from + PAGE).map(cells);
  const more = items.length > PAGE;
  byId("list-status").textContent = more
    ? `${status}; ${from + 1} to ${from + page.length} shown`
    : status;
  const turnTo = (by) => () => {
    state.page += by;
    drawList();
  };
  byId("list").replaceChildren(
    ...(page.length
      ? [
          el(
            "div",
            { class: "scroll" },
            el(
              "table",
              { class: "list" },
              el(
                "thead",
                {},
                el(
                  "tr",
                  {},
                  page[0].map(([name]) => el("th", { scope: "col" }, name)),
                ),
              ),
              el(
                "tbody",
                {},
                page.map((row) =>
                  el(
                    "tr",
                    {},
                    row.map(([, content]) => el("td", {}, content)),
                  ),
                ),
              ),
            ),
          ),
        ]
      : []),
    ...(more
      ? [
          el(
            "p",
            {},
            el(
              "button",
              { type: "button", disabled: !state.page, click: turnTo(-1) },
              "Previous problems",
            ),
            " ",
            el(
              "button",
              { type: "button", disabled: from + PAGE >= items.length, click: turnTo(1) },
              "Next problems",
            ),
          ),
        ]
      : []),
  );
}
