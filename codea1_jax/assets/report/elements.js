// The page of `codea1 report`. Whatever a model wrote is inserted as text nodes only (see `el`);
// the page's policy forbids anything else.
"use strict";

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const runs = data.runs;

// Control, bidirectional and zero-width characters are shown by their code: text that looks like
// other text is an old trick.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const visible = (text) =>
  text.replace(HIDDEN, (c) => `\u27e6${c.charCodeAt(0).toString(16).padStart(4, "0")}\u27e7`);

function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "text", "rect", "title"].includes(tag);
  const node = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

const code = (text) => el("pre", { tabindex: 0 }, el("code", {}, visible(text)));
const percent = (v) => `${(100 * v).toFixed(1)} %`;
const plain = (v) =>
  v === null || v === undefined
    ? "\u2013"
    : v === 0
      ? "0"
      : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3
        ? v.toExponential(1)
        : String(Number(v.toPrecision(3)));
const seconds = (v) => (v >= 120 ? `${(v / 60).toFixed(1)} min` : `${v.toFixed(1)} s`);
// The small addition makes a mean of 0.325 round up however its sum was rounded.
const reward = (v) => (v === null || v === undefined ? "\u2013" : (v + 1e-9).toFixed(2));
const shown = (v, form) => (v === null || v === undefined ? "\u2013" : form(v));
