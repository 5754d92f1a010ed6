// The page of `codea1 report`. Whatever a model wrote is inserted as text nodes only (see `el`);
// the page's policy forbids anything else.
"use strict";

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const runs = data.runs;

// ---- text and elements --------------------------------------------------------------------------

// Control, bidirectional and zero-width characters are shown by their code: text that looks like
// other text is an old trick.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const visible = (text) =>
  text.replace(HIDDEN, (c) => `\u27e6${c.charCodeAt(0).toString(16).padStart(4, "0")}\u27e7`);

function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "text", "rect", "title"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

const code = (text) => el("pre", { tabindex: 0 }, el("code", {}, visible(text)));
const percent = (v) => `${(100 * v).toFixed(1)} %`;
const plain = (v) => (v === null || v === undefined ? "\u2013"
  : v === 0 ? "0" : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? v.toExponential(1)
  : String(Number(v.toPrecision(3))));
const seconds = (v) => (v >= 120 ? `${(v / 60).toFixed(1)} min` : `${v.toFixed(1)} s`);
// The small addition makes a mean of 0.325 round up however its sum was rounded.
const reward = (v) => (v === null || v === undefined ? "\u2013" : (v + 1e-9).toFixed(2));
const shown = (v, form) => (v === null || v === undefined ? "\u2013" : form(v));

// ---- overview -----------------------------------------------------------------------------------

function drawOverview() {
  const title = runs.map((run) => run.name).join(" and ");
  document.title = `${visible(title)} \u2013 codea1 report`;
  byId("title").textContent = visible(title);
  const rows = [
    ["steps", (s) => String(s.steps)],
    ["hold-out pass rate at start", (s) => shown(s.first_pass_rate, percent)],
    ["at the end", (s) => shown(s.final_pass_rate, percent)],
    ["at its best", (s) => (s.best_step === null ? "\u2013"
      : `${percent(s.best_pass_rate)} (step ${s.best_step})`)],
    ["valid tests, last 5 steps", (s) => shown(s.valid_share, percent)],
    ["exposing tests, last 5 steps", (s) => shown(s.exposing_share, percent)],
    ["trained tokens", (s) => s.tokens.toLocaleString("en")],
    ["time in steps and evaluation", (s) => seconds(s.wall_s)],
  ];
  const table = el("table", { class: "plain" },
    runs.length > 1
      ? el("thead", {}, el("tr", {}, el("td"), runs.map((run, r) =>
        el("th", { scope: "col" }, runLabel(r)))))
      : null,
    el("tbody", {}, rows.map(([name, form]) => el("tr", {},
      el("th", { scope: "row" }, name), runs.map((run) => el("td", {}, form(run.summary)))))));
  byId("summary").append(el("div", { class: "scroll" }, table));
  runs.forEach((run, r) => {
    const prefix = runs.length > 1 ? `${visible(run.name)}: ` : "";
    const items = run.alarms.map((alarm) => el("li", { class: "alarm" },
      `${prefix}${alarm.text} (step `,
      el("button", { type: "button", class: "link", click: () => setStep(alarm.step) },
        String(alarm.step)),
      alarm.num_steps > 1 ? `; ${alarm.num_steps} steps concerned)` : ")"));
    const notes = run.notes.map((note) => el("li", {}, prefix + note));
    if (items.length + notes.length) byId("summary").append(el("ul", { class: "notes" }, items, notes));
    else byId("summary").append(el("p", { class: "hint" },
      `${prefix}No alarm: every verdict is known, sampler and learner agree, no update was skipped.`));
    if (run.config) {
      byId("summary").append(el("details", {}, el("summary", {}, `${prefix}config.gin`),
        code(run.config)));
    }
  });
  if (data.differences.length) {
    byId("summary").append(el("details", { open: true }, el("summary", {}, "Configured differently"),
      el("div", { class: "scroll" }, el("table", { class: "plain" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "key"),
          runs.map((run, r) => el("th", { scope: "col" }, runLabel(r))))),
        el("tbody", {}, data.differences.map(([key, ...values]) => el("tr", {},
          el("th", { scope: "row" }, visible(key)),
          values.map((value) => el("td", {}, visible(value) || "unset")))))))));
  }
}

const runLabel = (r) => `${visible(runs[r].name)}${runs.length > 1 ? (r ? " (dashed)" : " (solid)") : ""}`;

// ---- curves -------------------------------------------------------------------------------------

const roles = (name) => [[`coder/${name}`, "coder", 1], [`tester/${name}`, "tester", 2]];
const clips = (role) => [[`${role}/clip_fraction_low`, "low", 1],
  [`${role}/clip_fraction_high`, "high", 2], [`${role}/dual_clip_fraction`, "dual", 3]];
// [title, [[metric, legend, colour 1 to 6], ...]]
const PANELS = [
  ["Hold-out pass rate", [["eval/coder/pass_rate", "coder", 1]]],
  ["Reward", roles("reward/mean")],
  ["Coder reward by term", [["coder/reward/pass_new", "new tests", 1],
    ["coder/reward/pass_hist", "remembered tests", 3]]],
  ["Tester reward by term", [["tester/reward/valid", "validity", 2],
    ["tester/reward/adversarial", "adversarial", 4]]],
  ["Tests", [["tester/valid_share", "valid", 2], ["tester/exposing_share", "exposing a defect", 4]]],
  ["Codes that load", [["coder/valid_share", "coder", 1]]],
  ["Loss", roles("loss")],
  ["KL to the reference", roles("kl")],
  ["KL of a step", roles("policy_kl")],
  ["Entropy", roles("entropy")],
  ["Gradient norm", roles("grad_norm")],
  ["Clipped tokens, coder", clips("coder")],
  ["Clipped tokens, tester", clips("tester")],
  ["Response length, tokens", roles("response_tokens")],
  ["Truncated responses", roles("truncated_share")],
  ["Groups without a signal", roles("zero_advantage_groups")],
  ["Mistake Book", [["book/size", "tests", 5], ["book/questions", "questions", 3]]],
  ["Book so far", [["book/added", "added", 3], ["book/removed", "removed", 4],
    ["book/evicted", "evicted", 6]]],
  ["No verdict", [["verdicts/unknown_share", "share of codes or tests", 6]]],
  ["Sampler against learner, mean", roles("mismatch_mean")],
  ["Sampler against learner, KL", roles("mismatch_kl")],
  ["Sampled tokens per second", [["speed/coder_tokens_per_s", "coder", 1],
    ["speed/tester_tokens_per_s", "tester", 2]]],
];

// In the order of a step; others follow by name.
const PHASES = ["coder_rollout", "tester_rollout", "judging", "coder_update", "tester_update"].map((name) => `time/${name}`);

const allSteps = [...new Set(runs.flatMap((run) => [...run.steps, ...run.rollout_steps]))]
  .sort((a, b) => a - b);
const firstStep = allSteps[0] ?? 0;
const lastStep = allSteps[allSteps.length - 1] ?? 0;
const W = 360, H = 190, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;
const cursors = []; // functions that move a chart's cursor to a step

function niceStep(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
}

function niceTicks(low, high, count) {
  const step = niceStep(low, high, count);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

const xOf = (step) => LEFT + (W - LEFT - RIGHT)
  * (lastStep === firstStep ? 0.5 : (step - firstStep) / (lastStep - firstStep));

function frame(title, low, high, describe) {
  const yOf = (v) => TOP + (H - TOP - BOTTOM) * (1 - (v - low) / (high - low));
  const svg = el("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}. ${describe}` });
  for (const tick of niceTicks(low, high, 4)) {
    svg.append(el("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: yOf(tick), y2: yOf(tick) }),
      el("text", { class: "tick", x: LEFT - 5, y: yOf(tick) + 3.5, "text-anchor": "end" }, plain(tick)));
  }
  for (const tick of niceTicks(firstStep, lastStep, 5).filter(Number.isInteger)) {
    svg.append(el("text", { class: "tick", x: xOf(tick), y: H - 6, "text-anchor": "middle" }, plain(tick)));
  }
  const cursor = el("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, x1: 0, x2: 0 });
  svg.append(cursor);
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * W - LEFT) / (W - LEFT - RIGHT);
    const wanted = firstStep + share * (lastStep - firstStep);
    setStep(allSteps.reduce((best, s) => (Math.abs(s - wanted) < Math.abs(best - wanted) ? s : best),
      firstStep));
  });
  const move = (step) => {
    cursor.setAttribute("x1", xOf(step));
    cursor.setAttribute("x2", xOf(step));
  };
  return { svg, yOf, move };
}

// Legend entries with the value at the chosen step; `series`: [legend, class, [[Map, run], ...]].
function legend(series, move, form) {
  const cells = [];
  const list = el("ul", { class: "legend" }, series.map(([name, style, maps]) => el("li", {},
    el("span", { class: `swatch ${style}`, "aria-hidden": "true" }), `${name} `,
    maps.map((map, i) => {
      const cell = el("b");
      cells.push([cell, map]);
      return [i ? " / " : "", cell];
    }))));
  cursors.push((step) => {
    move(step);
    for (const [cell, map] of cells) cell.textContent = map.has(step) ? form(map.get(step)) : "\u2013";
  });
  return list;
}

function column(run, key) {
  const values = run.metrics[key];
  return new Map(values ? run.steps.map((s, i) => [s, values[i]]).filter(([, v]) => v !== null) : []);
}

function lineChart(title, curves) {
  const series = curves
    .map(([key, name, color]) => [name, `c${color}`, runs.map((run) => column(run, key))])
    .filter(([, , maps]) => maps.some((map) => map.size));
  if (!series.length) return null;
  const values = series.flatMap(([, , maps]) => maps.flatMap((map) => [...map.values()]));
  let low = Math.min(...values), high = Math.max(...values);
  if (low > 0 && low < 0.4 * high) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * high)];
  const step = niceStep(low, high, 4);
  [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  const describe = series.map(([name, , maps]) => maps.map((map, r) => {
    const list = [...map.values()];
    return list.length ? `${name}${runs.length > 1 ? `, ${visible(runs[r].name)}` : ""}: `
      + `from ${plain(list[0])} to ${plain(list[list.length - 1])}` : "";
  }).filter(Boolean).join("; ")).join("; ");
  const { svg, yOf, move } = frame(title, low, high, describe);
  for (const [, style, maps] of series) {
    maps.forEach((map, r) => {
      const points = [...map].map(([s, v]) => [xOf(s), yOf(v)]);
      if (points.length > 1) {
        svg.append(el("path", { class: `curve ${style} run${r}`,
          d: points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") }));
      }
      if (points.length <= 40) {
        for (const [x, y] of points) svg.append(el("circle", { class: `dot ${style} run${r}`, cx: x, cy: y, r: 2 }));
      }
    });
  }
  return el("figure", {}, el("figcaption", {}, title), svg, legend(series, move, plain));
}

// Seconds of each phase, stacked by step. A step far above the median (compilation) is cut off.
function phaseChart(run, r) {
  const total = column(run, "time/step");
  const keys = Object.keys(run.metrics).filter((key) => key.startsWith("time/") && key !== "time/step");
  if (!keys.length) return null;
  const rank = (key) => (PHASES.indexOf(key) < 0 ? PHASES.length : PHASES.indexOf(key));
  keys.sort((a, b) => rank(a) - rank(b));
  const phases = keys.map((key) => [key.slice(5).replaceAll("_", " "), column(run, key)]);
  const steps = run.steps.filter((s) => phases.some(([, map]) => map.has(s)));
  const sums = new Map(steps.map((s) => [s, phases.reduce((sum, [, map]) => sum + (map.get(s) ?? 0), 0)]));
  const ordered = [...sums.values()].sort((a, b) => a - b);
  const bound = 4 * ordered[Math.floor(ordered.length / 2)];
  const high = Math.max(...ordered.filter((v) => v <= bound), 1e-3) * 1.05;
  const cut = steps.filter((s) => sums.get(s) > high);
  const title = `Seconds by phase${runs.length > 1 ? `, ${visible(run.name)}` : ""}`;
  const { svg, yOf, move } = frame(title, 0, high, `${phases.map(([name]) => name).join(", ")}, stacked`);
  const width = Math.max(0.8, Math.min(14, (W - LEFT - RIGHT) / (lastStep - firstStep + 1) * 0.85));
  const below = new Map(steps.map((s) => [s, 0]));
  phases.forEach(([, map], i) => {
    let d = "";
    for (const [s, v] of map) {
      const from = Math.min(below.get(s), high), to = Math.min(below.get(s) + v, high);
      below.set(s, below.get(s) + v);
      const x = xOf(s) - width / 2;
      d += `M${x.toFixed(1)} ${yOf(from).toFixed(1)}V${yOf(to).toFixed(1)}h${width.toFixed(1)}V${yOf(from).toFixed(1)}Z`;
    }
    svg.append(el("path", { class: `bar p${i % 8}`, d }));
  });
  const series = phases.map(([name, map], i) => [name, `p${i % 8}`, [map]]);
  if (total.size) series.push(["whole step without evaluation", "none", [total]]);
  const note = cut.length ? el("p", { class: "hint" }, `Cut off: ${cut.slice(0, 4).map((s) =>
    `step ${s} (${seconds(sums.get(s))})`).join(", ")}${cut.length > 4 ? ` and ${cut.length - 4} more` : ""}`) : null;
  return el("figure", {}, el("figcaption", {}, title), svg, legend(series, move, (v) => v.toFixed(1)), note);
}

function drawCurves() {
  if (runs.length > 1) byId("dash-hint").textContent = `Solid: ${visible(runs[0].name)}; dashed: ${visible(runs[1].name)}.`;
  const charts = PANELS.map(([title, curves]) => lineChart(title, curves)).concat(runs.map(phaseChart)).filter(Boolean);
  byId("charts").append(...(charts.length ? charts : [el("p", { class: "hint" }, "No metrics yet.")]));
  const drawn = new Set(PANELS.flatMap(([, curves]) => curves.map(([key]) => key)));
  const others = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))]
    .filter((key) => !drawn.has(key) && !key.startsWith("time/")).sort();
  const box = byId("other-metrics");
  box.hidden = !others.length;
  box.addEventListener("toggle", () => {
    const place = box.querySelector(".charts");
    if (!box.open || place.childElementCount) return;
    place.append(...others.map((key) => lineChart(visible(key), [[key, "", 5]])));
    cursors.forEach((move) => move(state.step));
  });
}

// ---- rollouts: reading --------------------------------------------------------------------------

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

// ---- rollouts: verdicts -------------------------------------------------------------------------

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
const kindOf = (verdict) => (verdict.split(":", 1)[0] in KINDS ? verdict.split(":", 1)[0] : "not_executed");
const reasonOf = (verdict) => verdict.split(": ").slice(1).join(": ");

function statementKind(statement, suite, m) {
  const verdict = statement.verdicts[suite.targets.indexOf(m)];
  if (verdict) return kindOf(verdict);
  return statement.status === "valid" ? "not_executed"
    : statement.status in KINDS ? statement.status : "invalid";
}

// A test with a wrong predicted answer may be run all the same, against the reference's answer.
const WRONG = "the predicted answer is wrong";
const isRunThoughWrong = (statement, kind) => statement.status === "wrong_answer" && kind !== "wrong_answer";

// Suites by code: in Code-A1 every suite aims at one code, in self-play at all.
function suitesOf(problem) {
  const rows = problem.codes.map(() => []);
  problem.groups.forEach((group, g) => group.suites.forEach((suite, n) => {
    for (const m of suite.targets) rows[m].push({ g, n, suite, selected: group.selected });
  }));
  return rows;
}

function kindsOf(problem) {
  const rows = suitesOf(problem);
  return problem.codes.map((one, m) => one.history.map(kindOf)
    .concat(rows[m].flatMap(({ suite }) => suite.statements.map((s) => statementKind(s, suite, m)))));
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
  const size = 4, width = Math.max(1, ...rows.map((row) => row.length));
  const canvas = el("canvas", { width: width * size, height: rows.length * size, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const colors = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, style.getPropertyValue(`--${kind}`)]));
  rows.forEach((row, y) => row.forEach((kind, x) => {
    context.fillStyle = colors[kind];
    context.fillRect(x * size, y * size, size - 1, size - 1);
  }));
  return canvas;
}

// ---- rollouts: the list -------------------------------------------------------------------------

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
      ["steps", runs.map((run, r) => el("div", {}, runs.length > 1 ? `${visible(run.name)}: ` : "",
        entry.runs[r].slice(0, 12).map(([step]) => [el("button", {
          type: "button", class: "link", "aria-label": `step ${step}, ${visible(entry.id)}`,
          click: () => { setStep(step, false); openProblem(entry.id); },
        }, String(step)), " "]), entry.runs[r].length ? "" : "\u2013", entry.runs[r].length > 12 ? `and ${entry.runs[r].length - 12} more` : ""))],
    ]);
    return;
  }
  byId("list-status").textContent = `Opening step ${state.step}`;
  const found = await Promise.all(runs.map((run, r) => problemsAt(r, state.step)));
  if (turn !== state.listTurn) return;
  const byProblem = new Map();
  found.forEach((problems, r) => problems.filter(FILTERS[filter.value]).forEach((problem) => {
    if (!byProblem.has(problem.id)) byProblem.set(problem.id, runs.map(() => null));
    byProblem.get(problem.id)[r] = problem;
  }));
  const rows = [...byProblem.values()];
  const total = new Set(found.flat().map((problem) => problem.id)).size;
  const status = total ? `Step ${state.step}: ${rows.length} of ${total} problems`
    : `No rollouts of step ${state.step} in this file`;
  showList(rows, status, (entries) => {
    const one = entries.find(Boolean);
    const cells = [["problem", problemButton(one.id, one.question)]];
    entries.forEach((problem, r) => {
      const side = runs.length > 1 ? `, ${visible(runs[r].name)}` : "";
      const suites = problem ? problem.groups.flatMap((g) => g.suites) : [];
      cells.push([`coder reward${side}`, problem ? reward(mean(known(problem.codes))) : "\u2013"],
        [`tester reward${side}`, problem ? reward(mean(known(suites))) : "\u2013"],
        [`remembered${side}`, problem ? String(problem.history.length) : "\u2013"],
        [`verdicts${side}`, problem ? thumbnail(problem) : "\u2013"]);
    });
    return cells;
  });
}

function problemButton(id, question) {
  return el("button", { type: "button", class: "link open", click: () => openProblem(id) },
    el("b", {}, visible(id)), ` ${firstLine(question)}`);
}

function showList(items, status, cells) {
  state.page = Math.min(state.page, Math.max(0, Math.ceil(items.length / PAGE) - 1));
  const from = state.page * PAGE;
  const page = items.slice(from, from + PAGE).map(cells);
  const more = items.length > PAGE;
  byId("list-status").textContent = more ? `${status}; ${from + 1} to ${from + page.length} shown` : status;
  const turnTo = (by) => () => { state.page += by; drawList(); };
  byId("list").replaceChildren(...(page.length ? [el("div", { class: "scroll" },
    el("table", { class: "list" },
      el("thead", {}, el("tr", {}, page[0].map(([name]) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, page.map((row) => el("tr", {}, row.map(([, content]) => el("td", {}, content)))))))]
    : []), ...(more ? [el("p", {},
    el("button", { type: "button", disabled: !state.page, click: turnTo(-1) }, "Previous problems"), " ",
    el("button", { type: "button", disabled: from + PAGE >= items.length, click: turnTo(1) }, "Next problems"))] : []));
}

// ---- rollouts: one problem ----------------------------------------------------------------------

async function openProblem(id) {
  state.problem = id;
  await drawProblem();
  byId("problem").scrollIntoView({ block: "start" });
  byId("problem").querySelector("h3").focus({ preventScroll: true });
}

async function drawProblem() {
  const id = state.problem, turn = ++state.problemTurn;
  if (id === null) return;
  const entry = (await problemIndex()).find((one) => one.id === id);
  const sides = await Promise.all(runs.map((run, r) => drawSide(r, entry, state.step)));
  if (turn !== state.problemTurn) return;
  const any = sides.find((side) => side.problem)?.problem;
  byId("problem").replaceChildren(el("article", {},
    el("h3", { tabindex: -1 }, visible(id)),
    el("p", { class: "question", tabindex: 0 }, visible(any ? any.question : entry.question)),
    any ? el("details", {}, el("summary", {}, "Reference solution"), code(any.reference)) : null,
    keyOfSigns(),
    el("div", { class: `sides n${runs.length}` }, sides.map((side) => side.node))));
}

function keyOfSigns() {
  return el("ul", { class: "legend key", "aria-label": "Signs" }, Object.entries(KINDS).map(([kind, [sign, words]]) =>
    el("li", {}, el("span", { class: `cell ${kind}`, "aria-hidden": "true" }, sign), ` ${words}`)),
  el("li", {}, el("span", { class: "cell pass wrong", "aria-hidden": "true" }, "\u2713"), " bar below: ", WRONG));
}

// One run's view of a problem: in the wanted step, or in the nearest one that has it.
async function drawSide(r, entry, wanted) {
  const steps = entry.runs[r];
  const node = el("section", { class: "side", "aria-label": visible(runs[r].name) });
  if (!steps.length) {
    node.append(el("p", { class: "hint" }, `${visible(runs[r].name)}: this problem is in none of its steps here.`));
    return { node, problem: null };
  }
  const nearest = steps.reduce((best, one) => (Math.abs(one[0] - wanted) < Math.abs(best[0] - wanted) ? one : best));
  const choice = el("select", { change: async () => {
    node.replaceWith((await drawSide(r, entry, Number(choice.value))).node);
  } }, steps.map(([step, coder, tester, remembered]) => el("option", { value: step, selected: step === nearest[0] },
    `${step}: coder ${reward(coder)}, tester ${reward(tester)}, ${remembered} remembered`)));
  const problem = (await problemsAt(r, nearest[0])).find((one) => one.id === entry.id);
  const inspector = el("div", { class: "inspector", role: "region", "aria-label": "What is behind a cell" },
    el("p", { class: "hint" }, "Choose a code or a test."));
  node.append(el("p", {}, el("label", {}, runs.length > 1 ? `${visible(runs[r].name)}, step ` : "step ", choice)),
    ...matrix(problem, inspector), inspector);
  return { node, problem };
}

function matrix(problem, inspector) {
  const rows = suitesOf(problem);
  const width = Math.max(0, ...rows.map((row) => row.length));
  const choose = (button, show) => {
    table.querySelectorAll("[aria-pressed=true]").forEach((other) => other.setAttribute("aria-pressed", "false"));
    button.setAttribute("aria-pressed", "true");
    inspector.replaceChildren(...show().filter(Boolean));
  };
  const cell = (style, text, label, show) => el("button", {
    type: "button", class: `cell ${style}`, tabindex: -1, "aria-pressed": "false", "aria-label": label, title: label,
    click: (event) => choose(event.currentTarget, show),
  }, text);
  const body = problem.codes.map((one, m) => {
    const state = one.masked ? "left out" : `reward ${reward(one.reward)}`;
    const broken = one.valid === false ? ", does not load" : one.valid === null ? ", no verdict" : "";
    return el("tr", {},
      el("th", { scope: "row" }, cell("code", `code ${m + 1}${one.valid === true ? "" : one.valid === null ? " ?" : " \u2715"}`,
        `code ${m + 1}, ${state}${broken}`, () => inspectCode(problem, m)),
      el("span", { class: "small" }, one.masked ? "left out" : reward(one.reward))),
      problem.history.length ? el("td", {}, one.history.map((verdict, h) => cell(kindOf(verdict), KINDS[kindOf(verdict)][0],
        `code ${m + 1}, remembered test ${h + 1}: ${KINDS[kindOf(verdict)][1]}`, () => inspectCode(problem, m, h)))) : null,
      Array.from({ length: width }, (_, i) => {
        if (!rows[m][i]) return el("td");
        const { g, n, suite, selected } = rows[m][i];
        return el("td", { class: selected ? "selected" : null },
          suite.statements.map((statement, k) => {
            const kind = statementKind(statement, suite, m);
            const wrong = isRunThoughWrong(statement, kind);
            return cell(kind + (wrong ? " wrong" : ""), KINDS[kind][0],
              `code ${m + 1}, suite ${i + 1}, test ${k + 1}: ${KINDS[kind][1]}${wrong ? `, ${WRONG}` : ""}`,
              () => inspectTest(problem, m, rows[m][i], i, k));
          }),
          cell("code", suite.masked ? "left out" : reward(suite.reward),
            `code ${m + 1}, suite ${i + 1}, ${suite.masked ? "left out" : `reward ${reward(suite.reward)}`}`,
            () => inspectTest(problem, m, rows[m][i], i, -1)));
      }));
  });
  const table = el("table", { class: "matrix", "aria-label": "Codes against tests", keydown: moveInMatrix },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "code, reward"),
      problem.history.length ? el("th", { scope: "col" }, "remembered tests") : null,
      Array.from({ length: width }, (_, i) => el("th", { scope: "col" }, `suite ${i + 1}, reward`)))),
    el("tbody", {}, body));
  table.querySelector("button")?.setAttribute("tabindex", "0");
  return [el("div", { class: "scroll" }, table), el("p", { class: "hint" },
    "A row is a code, a block a suite against it, a cell a test. Underlined suites trained the tester. Arrow keys move.")];
}

function moveInMatrix(event) {
  const table = event.currentTarget;
  const rows = [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("button")]);
  const y = rows.findIndex((row) => row.includes(event.target));
  if (y < 0) return;
  const x = rows[y].indexOf(event.target);
  const goal = { ArrowLeft: [y, x - 1], ArrowRight: [y, x + 1], ArrowUp: [y - 1, x], ArrowDown: [y + 1, x],
    Home: [y, 0], End: [y, rows[y].length - 1] }[event.key];
  if (!goal || !rows[goal[0]] || goal[1] < 0) return;
  event.preventDefault();
  const next = rows[goal[0]][Math.min(goal[1], rows[goal[0]].length - 1)];
  event.target.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

function testTable(header, rows, chosen) {
  return el("div", { class: "scroll" }, el("table", { class: "plain tests" },
    el("thead", {}, el("tr", {}, header.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map((row, k) => el("tr", { class: k === chosen ? "chosen" : null, "aria-current": k === chosen ? "true" : null },
      row.map((content) => el("td", {}, typeof content === "string" ? visible(content) : content)))))));
}

const badge = (kind, wrong = false) => el("span", { class: "nowrap" },
  el("span", { class: `cell ${kind}${wrong ? " wrong" : ""}`, "aria-hidden": "true" }, KINDS[kind][0]), ` ${KINDS[kind][1]}`);

function codeParts(problem, m) {
  const one = problem.codes[m];
  const facts = [one.masked ? "left out of training" : `reward ${reward(one.reward)}`,
    problem.history.length ? `passes ${shown(one.pass_hist, percent)} of the remembered tests` : null,
    one.valid === false ? "does not load" : one.valid === null ? "no verdict" : null,
    one.truncated ? "cut off at the token limit" : null].filter(Boolean).join("; ");
  return [el("h4", {}, `Code ${m + 1}`), el("p", {}, facts, one.reason ? `: ${visible(one.reason)}` : ""), code(one.text),
    el("details", {}, el("summary", {}, "The coder's whole response"), code(one.response))];
}

function inspectCode(problem, m, chosen = -1) {
  const rows = problem.history.map((test, h) => [String(h + 1), test.call, test.expected,
    badge(kindOf(problem.codes[m].history[h])), reasonOf(problem.codes[m].history[h])]);
  return [...codeParts(problem, m), rows.length ? el("h4", {}, "Remembered tests") : null,
    rows.length ? testTable(["", "call", "the reference says", "verdict", "why"], rows, chosen) : null];
}

function inspectTest(problem, m, { g, n, suite, selected }, i, chosen) {
  const rows = suite.statements.map((statement, k) => {
    const verdict = statement.verdicts[suite.targets.indexOf(m)] ?? "";
    const kind = statementKind(statement, suite, m);
    const wrong = isRunThoughWrong(statement, kind);
    return [String(k + 1), statement.text, statement.expected ?? "\u2013", badge(kind, wrong),
      [statement.reason || (wrong ? WRONG : ""), reasonOf(verdict)].filter(Boolean).join("; ")];
  });
  const terms = suite.masked ? "left out of training"
    : `reward ${reward(suite.reward)}: validity ${reward(suite.terms.valid)}, adversarial ${reward(suite.terms.adversarial)}`;
  return [el("h4", {}, `Suite ${i + 1} against code ${m + 1}`),
    el("p", {}, terms, suite.terms.pass_new === null ? "" : `; the code passes ${percent(suite.terms.pass_new)} of its tests`,
      selected ? "; its group trained the tester" : "; its group was not selected for training",
      suite.truncated ? "; cut off at the token limit" : ""),
    rows.length ? testTable(["", "as written", "the reference says", "verdict", "why"], rows, chosen)
      : el("p", { class: "hint" }, "The response holds no statement."),
    el("details", {}, el("summary", {}, "The tester's whole response"), code(suite.response)),
    ...codeParts(problem, m)];
}

// ---- the chosen step ----------------------------------------------------------------------------

const rolloutSteps = [...new Set(runs.flatMap((run) => run.rollout_steps))].sort((a, b) => a - b);

function setStep(step, isProblemFollowing = true) {
  state.step = step;
  state.page = 0;
  byId("slider").value = String(allSteps.indexOf(step));
  byId("slider").setAttribute("aria-valuetext", `step ${step}`);
  byId("step-text").textContent = String(step);
  byId("previous").disabled = !rolloutSteps.some((s) => s < step);
  byId("next").disabled = !rolloutSteps.some((s) => s > step);
  cursors.forEach((move) => move(step));
  clearTimeout(state.timer); // dragging the slider must not open every step on the way
  state.timer = setTimeout(() => {
    drawList();
    if (isProblemFollowing) drawProblem();
  }, 50);
}

function start() {
  drawOverview();
  drawCurves();
  byId("slider").max = String(Math.max(0, allSteps.length - 1));
  byId("slider").addEventListener("input", (event) => setStep(allSteps[event.target.valueAsNumber] ?? 0));
  byId("previous").addEventListener("click", () => setStep(rolloutSteps.findLast((s) => s < state.step)));
  byId("next").addEventListener("click", () => setStep(rolloutSteps.find((s) => s > state.step)));
  byId("search-form").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["search", "filter"]) byId(id).addEventListener("input", () => { state.page = 0; drawList(); });
  setStep(rolloutSteps[rolloutSteps.length - 1] ?? lastStep);
  document.documentElement.dataset.ready = "true"; // for tests and scripts that wait for the page
}

start();
