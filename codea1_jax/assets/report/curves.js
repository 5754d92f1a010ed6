// Charts: lines by step, and seconds by phase.

const roles = (name) => [
  [`coder/${name}`, "coder", 1],
  [`tester/${name}`, "tester", 2],
];
const clips = (role) => [
  [`${role}/clip_fraction_low`, "low", 1],
  [`${role}/clip_fraction_high`, "high", 2],
  [`${role}/dual_clip_fraction`, "dual", 3],
];
// [title, [[metric, legend, colour 1 to 6], ...]]
const PANELS = [
  ["Hold-out pass rate", [["eval/coder/pass_rate", "coder", 1]]],
  ["Reward", roles("reward/mean")],
  [
    "Coder reward by term",
    [
      ["coder/reward/pass_new", "new tests", 1],
      ["coder/reward/pass_hist", "remembered tests", 3],
    ],
  ],
  [
    "Tester reward by term",
    [
      ["tester/reward/valid", "validity", 2],
      ["tester/reward/adversarial", "adversarial", 4],
    ],
  ],
  [
    "Tests",
    [
      ["tester/valid_share", "valid", 2],
      ["tester/exposing_share", "exposing a defect", 4],
    ],
  ],
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
  ["Groups without a signal", roles("num_zero_variance_groups")],
  [
    "Mistake Book",
    [
      ["book/size", "tests", 5],
      ["book/questions", "questions", 3],
    ],
  ],
  [
    "Book so far",
    [
      ["book/added", "added", 3],
      ["book/removed", "removed", 4],
      ["book/evicted", "evicted", 6],
    ],
  ],
  ["No verdict", [["verdicts/unknown_share", "share of codes or tests", 6]]],
  ["Sampler against learner, mean", roles("mismatch_mean")],
  ["Sampler against learner, KL", roles("mismatch_kl")],
  [
    "Seconds of judging",
    [
      ["speed/sandbox_busy_s", "sandbox busy", 3],
      ["time/judging", "waiting for verdicts", 4],
    ],
  ],
  [
    "Sampled tokens per second",
    [
      ["speed/coder_tokens_per_s", "coder", 1],
      ["speed/tester_tokens_per_s", "tester", 2],
    ],
  ],
];

// In the order of a step; others follow by name.
const PHASES = ["coder_rollout", "tester_rollout", "judging", "coder_update", "tester_update"].map(
  (name) => `time/${name}`,
);

const allSteps = [...new Set(runs.flatMap((run) => [...run.steps, ...run.rollout_steps]))].sort(
  (a, b) => a - b,
);
const firstStep = allSteps[0] ?? 0;
const lastStep = allSteps[allSteps.length - 1] ?? 0;
const W = 360,
  H = 190,
  LEFT = 46,
  RIGHT = 8,
  TOP = 8,
  BOTTOM = 22;
const cursors = []; // functions that move a chart's cursor to a step

function niceStep(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
}

function niceTicks(low, high, count) {
  const step = niceStep(low, high, count);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    ticks.push(i * step);
  return ticks;
}

const xOf = (step) =>
  LEFT +
  (W - LEFT - RIGHT) * (lastStep === firstStep ? 0.5 : (step - firstStep) / (lastStep - firstStep));

function frame(title, low, high, describe) {
  const yOf = (v) => TOP + (H - TOP - BOTTOM) * (1 - (v - low) / (high - low));
  const svg = el("svg", {
    viewBox: `0 0 ${W} ${H}`,
    role: "img",
    "aria-label": `${title}. ${describe}`,
  });
  for (const tick of niceTicks(low, high, 4)) {
    svg.append(
      el("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: yOf(tick), y2: yOf(tick) }),
      el(
        "text",
        { class: "tick", x: LEFT - 5, y: yOf(tick) + 3.5, "text-anchor": "end" },
        plain(tick),
      ),
    );
  }
  for (const tick of niceTicks(firstStep, lastStep, 5).filter(Number.isInteger)) {
    svg.append(
      el("text", { class: "tick", x: xOf(tick), y: H - 6, "text-anchor": "middle" }, plain(tick)),
    );
  }
  const cursor = el("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, x1: 0, x2: 0 });
  svg.append(cursor);
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT);
    const wanted = firstStep + share * (lastStep - firstStep);
    setStep(
      allSteps.reduce(
        (best, s) => (Math.abs(s - wanted) < Math.abs(best - wanted) ? s : best),
        firstStep,
      ),
    );
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
  const list = el(
    "ul",
    { class: "legend" },
    series.map(([name, style, maps]) =>
      el(
        "li",
        {},
        el("span", { class: `swatch ${style}`, "aria-hidden": "true" }),
        `${name} `,
        maps.map((map, i) => {
          const cell = el("b");
          cells.push([cell, map]);
          return [i ? " / " : "", cell];
        }),
      ),
    ),
  );
  cursors.push((step) => {
    move(step);
    for (const [cell, map] of cells)
      cell.textContent = map.has(step) ? form(map.get(step)) : "\u2013";
  });
  return list;
}

function column(run, key) {
  const values = run.metrics[key];
  return new Map(
    values ? run.steps.map((s, i) => [s, values[i]]).filter(([, v]) => v !== null) : [],
  );
}

function lineChart(title, curves) {
  const series = curves
    .map(([key, name, color]) => [name, `c${color}`, runs.map((run) => column(run, key))])
    .filter(([, , maps]) => maps.some((map) => map.size));
  if (!series.length) return null;
  const values = series.flatMap(([, , maps]) => maps.flatMap((map) => [...map.values()]));
  let low = Math.min(...values),
    high = Math.max(...values);
  if (low > 0 && low < 0.4 * high) low = 0;
  if (low === high)
    [low, high] = low === 0 ? [0, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * high)];
  const step = niceStep(low, high, 4);
  [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  const describe = series
    .map(([name, , maps]) =>
      maps
        .map((map, r) => {
          const list = [...map.values()];
          return list.length
            ? `${name}${runs.length > 1 ? `, ${visible(runs[r].name)}` : ""}: ` +
                `from ${plain(list[0])} to ${plain(list[list.length - 1])}`
            : "";
        })
        .filter(Boolean)
        .join("; "),
    )
    .join("; ");
  const { svg, yOf, move } = frame(title, low, high, describe);
  for (const [, style, maps] of series) {
    maps.forEach((map, r) => {
      const points = [...map].map(([s, v]) => [xOf(s), yOf(v)]);
      if (points.length > 1) {
        svg.append(
          el("path", {
            class: `curve ${style} run${r}`,
            d: points
              .map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`)
              .join(""),
          }),
        );
      }
      if (points.length <= 40) {
        for (const [x, y] of points)
          svg.append(el("circle", { class: `dot ${style} run${r}`, cx: x, cy: y, r: 2 }));
      }
    });
  }
  return el("figure", {}, el("figcaption", {}, title), svg, legend(series, move, plain));
}

// Seconds of each phase, stacked by step. A step far above the median (compilation) is cut off.
function phaseChart(run, r) {
  const total = column(run, "time/step");
  const keys = Object.keys(run.metrics).filter(
    (key) => key.startsWith("time/") && key !== "time/step",
  );
  if (!keys.length) return null;
  const rank = (key) => (PHASES.indexOf(key) < 0 ? PHASES.length : PHASES.indexOf(key));
  keys.sort((a, b) => rank(a) - rank(b));
  const phases = keys.map((key) => [key.slice(5).replaceAll("_", " "), column(run, key)]);
  const steps = run.steps.filter((s) => phases.some(([, map]) => map.has(s)));
  const sums = new Map(
    steps.map((s) => [s, phases.reduce((sum, [, map]) => sum + (map.get(s) ?? 0), 0)]),
  );
  const ordered = [...sums.values()].sort((a, b) => a - b);
  const bound = 4 * ordered[Math.floor(ordered.length / 2)];
  const high = Math.max(...ordered.filter((v) => v <= bound), 1e-3) * 1.05;
  const cut = steps.filter((s) => sums.get(s) > high);
  const title = `Seconds by phase${runs.length > 1 ? `, ${visible(run.name)}` : ""}`;
  const { svg, yOf, move } = frame(
    title,
    0,
    high,
    `${phases.map(([name]) => name).join(", ")}, stacked`,
  );
  const width = Math.max(
    0.8,
    Math.min(14, ((W - LEFT - RIGHT) / (lastStep - firstStep + 1)) * 0.85),
  );
  const below = new Map(steps.map((s) => [s, 0]));
  phases.forEach(([, map], i) => {
    let d = "";
    for (const [s, v] of map) {
      const from = Math.min(below.get(s), high),
        to = Math.min(below.get(s) + v, high);
      below.set(s, below.get(s) + v);
      const x = xOf(s) - width / 2;
      d += `M${x.toFixed(1)} ${yOf(from).toFixed(1)}V${yOf(to).toFixed(1)}h${width.toFixed(1)}V${yOf(from).toFixed(1)}Z`;
    }
    svg.append(el("path", { class: `bar p${i % 8}`, d }));
  });
  const series = phases.map(([name, map], i) => [name, `p${i % 8}`, [map]]);
  if (total.size) series.push(["whole step without evaluation", "none", [total]]);
  const note = cut.length
    ? el(
        "p",
        { class: "hint" },
        `Cut off: ${cut
          .slice(0, 4)
          .map((s) => `step ${s} (${seconds(sums.get(s))})`)
          .join(", ")}${cut.length > 4 ? ` and ${cut.length - 4} more` : ""}`,
      )
    : null;
  return el(
    "figure",
    {},
    el("figcaption", {}, title),
    svg,
    legend(series, move, (v) => v.toFixed(1)),
    note,
  );
}

function drawCurves() {
  if (runs.length > 1)
    byId("dash-hint").textContent =
      `Solid: ${visible(runs[0].name)}; dashed: ${visible(runs[1].name)}.`;
  const charts = PANELS.map(([title, curves]) => lineChart(title, curves))
    .concat(runs.map(phaseChart))
    .filter(Boolean);
  byId("charts").append(
    ...(charts.length ? charts : [el("p", { class: "hint" }, "No metrics yet.")]),
  );
  const drawn = new Set(PANELS.flatMap(([, curves]) => curves.map(([key]) => key)));
  const others = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))]
    .filter((key) => !drawn.has(key) && !key.startsWith("time/"))
    .sort();
  const box = byId("other-metrics");
  box.hidden = !others.length;
  box.addEventListener("toggle", () => {
    const place = box.querySelector(".charts");
    if (!box.open || place.childElementCount) return;
    place.append(...others.map((key) => lineChart(visible(key), [[key, "", 5]])));
    cursors.forEach((move) => move(state.step));
  });
}
