// The overview, the chosen step, and the start.

function drawOverview() {
  const title = runs.map((run) => run.name).join(" and ");
  document.title = `${visible(title)} \u2013 codea1 report`;
  byId("title").textContent = visible(title);
  const rows = [
    ["steps", (s) => String(s.steps)],
    ["hold-out pass rate at start", (s) => shown(s.first_pass_rate, percent)],
    ["at the end", (s) => shown(s.final_pass_rate, percent)],
    [
      "at its best",
      (s) =>
        s.best_step === null ? "\u2013" : `${percent(s.best_pass_rate)} (step ${s.best_step})`,
    ],
    ["valid tests, last 5 steps", (s) => shown(s.valid_share, percent)],
    ["exposing tests, last 5 steps", (s) => shown(s.exposing_share, percent)],
    ["trained tokens", (s) => s.tokens.toLocaleString("en")],
    ["time in steps and evaluation", (s) => seconds(s.wall_s)],
  ];
  const table = el(
    "table",
    { class: "plain" },
    runs.length > 1
      ? el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("td"),
            runs.map((run, r) => el("th", { scope: "col" }, runLabel(r))),
          ),
        )
      : null,
    el(
      "tbody",
      {},
      rows.map(([name, form]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, name),
          runs.map((run) => el("td", {}, form(run.summary))),
        ),
      ),
    ),
  );
  byId("summary").append(el("div", { class: "scroll" }, table));
  runs.forEach((run, r) => {
    const prefix = runs.length > 1 ? `${visible(run.name)}: ` : "";
    const items = run.alarms.map((alarm) =>
      el(
        "li",
        { class: "alarm" },
        `${prefix}${alarm.text} (step `,
        el(
          "button",
          { type: "button", class: "link", click: () => setStep(alarm.step) },
          String(alarm.step),
        ),
        alarm.num_steps > 1 ? `; ${alarm.num_steps} steps concerned)` : ")",
      ),
    );
    const notes = run.notes.map((note) => el("li", {}, prefix + note));
    if (items.length + notes.length)
      byId("summary").append(el("ul", { class: "notes" }, items, notes));
    else
      byId("summary").append(
        el(
          "p",
          { class: "hint" },
          `${prefix}No alarm: every verdict is known, sampler and learner agree, no update was skipped.`,
        ),
      );
    if (run.config) {
      byId("summary").append(
        el("details", {}, el("summary", {}, `${prefix}config.gin`), code(run.config)),
      );
    }
  });
  if (data.differences.length) {
    byId("summary").append(
      el(
        "details",
        { open: true },
        el("summary", {}, "Configured differently"),
        el(
          "div",
          { class: "scroll" },
          el(
            "table",
            { class: "plain" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                el("th", { scope: "col" }, "key"),
                runs.map((run, r) => el("th", { scope: "col" }, runLabel(r))),
              ),
            ),
            el(
              "tbody",
              {},
              data.differences.map(([key, ...values]) =>
                el(
                  "tr",
                  {},
                  el("th", { scope: "row" }, visible(key)),
                  values.map((value) => el("td", {}, visible(value) || "unset")),
                ),
              ),
            ),
          ),
        ),
      ),
    );
  }
}

const runLabel = (r) =>
  `${visible(runs[r].name)}${runs.length > 1 ? (r ? " (dashed)" : " (solid)") : ""}`;

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
  byId("slider").addEventListener("input", (event) =>
    setStep(allSteps[event.target.valueAsNumber] ?? 0),
  );
  byId("previous").addEventListener("click", () =>
    setStep(rolloutSteps.findLast((s) => s < state.step)),
  );
  byId("next").addEventListener("click", () => setStep(rolloutSteps.find((s) => s > state.step)));
  byId("search-form").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["search", "filter"])
    byId(id).addEventListener("input", () => {
      state.page = 0;
      drawList();
    });
  setStep(rolloutSteps[rolloutSteps.length - 1] ?? lastStep);
  document.documentElement.dataset.ready = "true"; // for tests and scripts that wait for the page
}

start();
