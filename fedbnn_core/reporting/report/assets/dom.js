"use strict";
// Elements, numbers and words.

const SVG = "http://www.w3.org/2000/svg";

// el("p", {class: "note", onclick: f}, "text", child); null children are left out.
function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const format = {
  percent: (v) => `${(100 * v).toFixed(2)} %`,
  percentTick: (v) => `${+(100 * v).toFixed(2)} %`,
  share: (v) => v.toFixed(4),
  plain: (v) => (v === 0 ? "0" : Math.abs(v) >= 1e4 || Math.abs(v) < 1e-3 ? v.toExponential(2) : `${+v.toPrecision(5)}`),
  tick: (v) => (v === 0 ? "0" : Math.abs(v) < 1e-3 ? v.toExponential(0) : `${+v.toPrecision(6)}`),
  whole: (v) => v.toLocaleString("en"),
  seconds: (v) => `${v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2)} s`,
  bytes(v) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let power = 0;
    while (v >= 1000 && power < units.length - 1) { v /= 1000; power += 1; }
    return `${power === 0 ? v : +v.toPrecision(3)} ${units[power]}`;
  },
  duration(seconds) {
    const s = Math.round(seconds);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  },
};

// About `count` round numbers that lie in [low, high].
function niceTicks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    ticks.push(+(i * step).toPrecision(12));
  }
  return ticks;
}

// Whole-number ticks for rounds and clients.
function wholeTicks(low, high, count) {
  return niceTicks(low, Math.max(high, low + 1), Math.min(count, high - low + 1))
    .filter((tick) => Number.isInteger(tick) && tick >= low && tick <= high);
}

function announce(text) {
  document.getElementById("announcer").textContent = text;
}

function cssValue(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function table(caption, heads, rows) {
  return el("table", {},
    el("caption", {class: "unseen"}, caption),
    el("thead", {}, el("tr", {}, heads.map((head, i) => el("th", {scope: "col", class: i ? "num" : null}, head)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, i) => (
      i === 0 ? el("th", {scope: "row"}, cell) : el("td", {class: "num"}, cell)))))));
}

function csv(heads, rows) {
  const quote = (cell) => (/[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : `${cell}`);
  return [heads, ...rows].map((row) => row.map((cell) => quote(cell ?? "")).join(",")).join("\n") + "\n";
}

// A closed "values as a table" under a figure; the table is made when it is opened.
function valuesTable(title, content) {
  const details = el("details", {}, el("summary", {}, "Values as a table"));
  details.addEventListener("toggle", () => {
    details.querySelectorAll(":scope > :not(summary)").forEach((node) => node.remove());
    if (!details.open) return;
    const {heads, rows, text} = content();
    const save = el("button", {type: "button", class: "quiet", onclick: () => {
      const link = el("a", {download: `${title}.csv`, href: URL.createObjectURL(new Blob([csv(heads, rows)], {type: "text/csv"}))});
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }}, "Save as CSV");
    details.append(save, el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, values`}, table(title, heads, text)));
  });
  return details;
}
