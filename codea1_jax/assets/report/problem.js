// One problem: the matrix of codes and tests, and what is behind a cell.

async function openProblem(id) {
  state.problem = id;
  await drawProblem();
  byId("problem").scrollIntoView({ block: "start" });
  byId("problem").querySelector("h3")?.focus({ preventScroll: true });
}

async function drawProblem() {
  const id = state.problem,
    turn = ++state.problemTurn;
  if (id === null) return;
  const entry = (await problemIndex()).find((one) => one.id === id);
  const sides = await Promise.all(runs.map((run, r) => drawSide(r, entry, state.step)));
  if (turn !== state.problemTurn) return;
  const any = sides.find((side) => side.problem)?.problem;
  byId("problem").replaceChildren(
    el(
      "article",
      {},
      el("h3", { tabindex: -1 }, visible(id)),
      el("p", { class: "question", tabindex: 0 }, visible(any ? any.question : entry.question)),
      any ? el("details", {}, el("summary", {}, "Reference solution"), code(any.reference)) : null,
      keyOfSigns(),
      el(
        "div",
        { class: `sides n${runs.length}` },
        sides.map((side) => side.node),
      ),
    ),
  );
}

function keyOfSigns() {
  return el(
    "ul",
    { class: "legend key", "aria-label": "Signs" },
    Object.entries(KINDS).map(([kind, [sign, words]]) =>
      el("li", {}, el("span", { class: `cell ${kind}`, "aria-hidden": "true" }, sign), ` ${words}`),
    ),
    el(
      "li",
      {},
      el("span", { class: "cell pass wrong", "aria-hidden": "true" }, "\u2713"),
      " bar below: ",
      WRONG,
    ),
  );
}

// One run's view of a problem: in the wanted step, or in the nearest one that has it.
async function drawSide(r, entry, wanted) {
  const steps = entry.runs[r];
  const node = el("section", { class: "side", "aria-label": visible(runs[r].name) });
  if (!steps.length) {
    node.append(
      el(
        "p",
        { class: "hint" },
        `${visible(runs[r].name)}: this problem is in none of its steps here.`,
      ),
    );
    return { node, problem: null };
  }
  const nearest = steps.reduce((best, one) =>
    Math.abs(one[0] - wanted) < Math.abs(best[0] - wanted) ? one : best,
  );
  const choice = el(
    "select",
    {
      change: async () => {
        node.replaceWith((await drawSide(r, entry, Number(choice.value))).node);
      },
    },
    steps.map(([step, coder, tester, remembered]) =>
      el(
        "option",
        { value: step, selected: step === nearest[0] },
        `${step}: coder ${reward(coder)}, tester ${reward(tester)}, ${remembered} remembered`,
      ),
    ),
  );
  const problem = (await problemsAt(r, nearest[0])).find((one) => one.id === entry.id);
  const inspector = el(
    "div",
    { class: "inspector", role: "region", "aria-label": "What is behind a cell" },
    el("p", { class: "hint" }, "Choose a code or a test."),
  );
  node.append(
    el(
      "p",
      {},
      el("label", {}, runs.length > 1 ? `${visible(runs[r].name)}, step ` : "step ", choice),
    ),
    ...matrix(problem, inspector),
    inspector,
  );
  return { node, problem };
}

function matrix(problem, inspector) {
  const rows = suitesOf(problem);
  const width = Math.max(0, ...rows.map((row) => row.length));
  const choose = (button, show) => {
    table
      .querySelectorAll("[aria-pressed=true]")
      .forEach((other) => other.setAttribute("aria-pressed", "false"));
    button.setAttribute("aria-pressed", "true");
    inspector.replaceChildren(...show().filter(Boolean));
  };
  const cell = (style, text, label, show) =>
    el(
      "button",
      {
        type: "button",
        class: `cell ${style}`,
        tabindex: -1,
        "aria-pressed": "false",
        "aria-label": label,
        title: label,
        click: (event) => choose(event.currentTarget, show),
      },
      text,
    );
  const body = problem.codes.map((one, m) => {
    const state = one.masked ? "left out" : `reward ${reward(one.reward)}`;
    const broken =
      one.valid === false ? ", does not load" : one.valid === null ? ", no verdict" : "";
    return el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        cell(
          "code",
          `code ${m + 1}${one.valid === true ? "" : one.valid === null ? " ?" : " \u2715"}`,
          `code ${m + 1}, ${state}${broken}`,
          () => inspectCode(problem, m),
        ),
        el("span", { class: "small" }, one.masked ? "left out" : reward(one.reward)),
      ),
      problem.history.length
        ? el(
            "td",
            {},
            one.history.map((verdict, h) =>
              cell(
                kindOf(verdict),
                KINDS[kindOf(verdict)][0],
                `code ${m + 1}, remembered test ${h + 1}: ${KINDS[kindOf(verdict)][1]}`,
                () => inspectCode(problem, m, h),
              ),
            ),
          )
        : null,
      Array.from({ length: width }, (_, i) => {
        if (!rows[m][i]) return el("td");
        const { g, n, suite, selected } = rows[m][i];
        return el(
          "td",
          { class: selected ? "selected" : null },
          suite.statements.map((statement, k) => {
            const kind = statementKind(statement, suite, m);
            const wrong = isRunThoughWrong(statement, kind);
            return cell(
              kind + (wrong ? " wrong" : ""),
              KINDS[kind][0],
              `code ${m + 1}, suite ${i + 1}, test ${k + 1}: ${KINDS[kind][1]}${wrong ? `, ${WRONG}` : ""}`,
              () => inspectTest(problem, m, rows[m][i], i, k),
            );
          }),
          cell(
            "code",
            suite.masked ? "left out" : reward(suite.reward),
            `code ${m + 1}, suite ${i + 1}, ${suite.masked ? "left out" : `reward ${reward(suite.reward)}`}`,
            () => inspectTest(problem, m, rows[m][i], i, -1),
          ),
        );
      }),
    );
  });
  const table = el(
    "table",
    { class: "matrix", "aria-label": "Codes against tests", keydown: moveInMatrix },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "code, reward"),
        problem.history.length ? el("th", { scope: "col" }, "remembered tests") : null,
        Array.from({ length: width }, (_, i) =>
          el("th", { scope: "col" }, `suite ${i + 1}, reward`),
        ),
      ),
    ),
    el("tbody", {}, body),
  );
  table.querySelector("button")?.setAttribute("tabindex", "0");
  return [
    el("div", { class: "scroll" }, table),
    el(
      "p",
      { class: "hint" },
      "A row is a code, a block a suite against it, a cell a test. Underlined suites trained the tester. Arrow keys move.",
    ),
  ];
}

function moveInMatrix(event) {
  const table = event.currentTarget;
  const rows = [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("button")]);
  const y = rows.findIndex((row) => row.includes(event.target));
  if (y < 0) return;
  const x = rows[y].indexOf(event.target);
  const goal = {
    ArrowLeft: [y, x - 1],
    ArrowRight: [y, x + 1],
    ArrowUp: [y - 1, x],
    ArrowDown: [y + 1, x],
    Home: [y, 0],
    End: [y, rows[y].length - 1],
  }[event.key];
  if (!goal || !rows[goal[0]] || goal[1] < 0) return;
  event.preventDefault();
  const next = rows[goal[0]][Math.min(goal[1], rows[goal[0]].length - 1)];
  event.target.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

function testTable(header, rows, chosen) {
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "plain tests" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          header.map((name) => el("th", { scope: "col" }, name)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row, k) =>
          el(
            "tr",
            { class: k === chosen ? "chosen" : null, "aria-current": k === chosen ? "true" : null },
            row.map((content) =>
              el("td", {}, typeof content === "string" ? visible(content) : content),
            ),
          ),
        ),
      ),
    ),
  );
}

const badge = (kind, wrong = false) =>
  el(
    "span",
    { class: "nowrap" },
    el(
      "span",
      { class: `cell ${kind}${wrong ? " wrong" : ""}`, "aria-hidden": "true" },
      KINDS[kind][0],
    ),
    ` ${KINDS[kind][1]}`,
  );

function codeParts(problem, m) {
  const one = problem.codes[m];
  const facts = [
    one.masked ? "left out of training" : `reward ${reward(one.reward)}`,
    problem.history.length
      ? `passes ${shown(one.pass_hist, percent)} of the remembered tests`
      : null,
    one.valid === false ? "does not load" : one.valid === null ? "no verdict" : null,
    one.truncated ? "cut off at the token limit" : null,
  ]
    .filter(Boolean)
    .join("; ");
  return [
    el("h4", {}, `Code ${m + 1}`),
    el("p", {}, facts, one.reason ? `: ${visible(one.reason)}` : ""),
    code(one.text),
    el("details", {}, el("summary", {}, "The coder's whole response"), code(one.response)),
  ];
}

function inspectCode(problem, m, chosen = -1) {
  const rows = problem.history.map((test, h) => [
    String(h + 1),
    test.call,
    test.expected,
    badge(kindOf(problem.codes[m].history[h])),
    reasonOf(problem.codes[m].history[h]),
  ]);
  return [
    ...codeParts(problem, m),
    rows.length ? el("h4", {}, "Remembered tests") : null,
    rows.length
      ? testTable(["", "call", "the reference says", "verdict", "why"], rows, chosen)
      : null,
  ];
}

function inspectTest(problem, m, { g, n, suite, selected }, i, chosen) {
  const rows = suite.statements.map((statement, k) => {
    const verdict = statement.verdicts[suite.targets.indexOf(m)] ?? "";
    const kind = statementKind(statement, suite, m);
    const wrong = isRunThoughWrong(statement, kind);
    return [
      String(k + 1),
      statement.text,
      statement.expected ?? "\u2013",
      badge(kind, wrong),
      [statement.reason || (wrong ? WRONG : ""), reasonOf(verdict)].filter(Boolean).join("; "),
    ];
  });
  const terms = suite.masked
    ? "left out of training"
    : `reward ${reward(suite.reward)}: validity ${reward(suite.terms.valid)}, adversarial ${reward(suite.terms.adversarial)}`;
  return [
    el("h4", {}, `Suite ${i + 1} against code ${m + 1}`),
    el(
      "p",
      {},
      terms,
      suite.terms.pass_new === null
        ? ""
        : `; the code passes ${percent(suite.terms.pass_new)} of its tests`,
      selected ? "; its group trained the tester" : "; its group was not selected for training",
      suite.truncated ? "; cut off at the token limit" : "",
    ),
    rows.length
      ? testTable(["", "as written", "the reference says", "verdict", "why"], rows, chosen)
      : el("p", { class: "hint" }, "The response holds no statement."),
    el("details", {}, el("summary", {}, "The tester's whole response"), code(suite.response)),
    ...codeParts(problem, m),
  ];
}
