"use strict";
// Heat maps on a canvas, and the confusion matrix.

// A shade between three colours of the theme, for a share of 0 to 1.
function heatColor(share) {
  const stops = ["--heat-0", "--heat-1", "--heat-2"].map((name) => cssValue(name).split(" ").map(Number));
  const [a, b, t] = share < 0.5 ? [stops[0], stops[1], share * 2] : [stops[1], stops[2], share * 2 - 1];
  return a.map((v, i) => Math.round(v + (b[i] - v) * t));
}

// Relative luminance; black and white contrast equally with 0.179.
function luminance(color) {
  const [r, g, b] = color.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// options: id, title, sub, label (of a column), rowLabel; data: {columns, rows, values[column][row], format}
class HeatMap {
  constructor(options, data) {
    this.options = options;
    this.data = data;
    this.cell = null;
    this.canvas = el("canvas", {"aria-hidden": "true"});
    this.tooltip = el("div", {class: "tooltip", hidden: true, "aria-hidden": "true"});
    this.plot = el("div", {
      class: "plot", tabindex: "0", role: "img",
      "aria-label": `${options.title}. ${options.description} Arrow keys move from cell to cell.`,
    }, this.canvas, this.tooltip);
    this.figure = el("figure", {class: "wide", "data-chart": options.id},
      el("figcaption", {}, el("h3", {}, options.title), el("span", {class: "sub"}, options.sub)),
      this.plot, valuesTable(options.title, () => this.values()));
    this.plot.addEventListener("pointermove", (event) => this.pointed(event));
    this.plot.addEventListener("pointerdown", (event) => this.pointed(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
    this.plot.addEventListener("blur", () => this.leave());
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
    themeListeners.push(() => this.draw());
  }

  layout() {
    const {columns, rows} = this.data;
    const named = rows.length <= 40;
    const left = named ? Math.min(110, 14 + 6.4 * Math.max(...rows.map((name) => name.length))) : 44;
    const high = named ? Math.max(Math.min(20, 420 / rows.length), 12) : Math.max(360 / rows.length, 2);
    const width = this.plot.clientWidth;
    return {named, left, high, width, right: width - 6, wide: (width - 6 - left) / columns.length, height: high * rows.length + 24};
  }

  draw() {
    const box = this.layout();
    if (box.width <= 0) return;
    const {columns, rows, values} = this.data;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = box.width * scale;
    this.canvas.height = box.height * scale;
    this.canvas.style.height = `${box.height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    // Square roots let small counts show.
    const highest = Math.max(1, ...values.map((column) => Math.max(...column)));
    const shades = Array.from({length: 256}, (_, i) => `rgb(${heatColor(i / 255).join(",")})`);
    const gap = box.wide > 5 ? 1 : 0;
    values.forEach((column, c) => column.forEach((v, r) => {
      pen.fillStyle = v ? shades[Math.round(40 + 215 * Math.sqrt(v / highest))] : shades[0];
      pen.fillRect(box.left + c * box.wide, r * box.high, box.wide - gap + (gap ? 0 : 0.4), box.high - (box.high > 5 ? 1 : 0));
    }));
    pen.fillStyle = cssValue("--soft");
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const step = Math.ceil(13 / box.high);
    rows.forEach((name, r) => {
      if (r % step === 0) pen.fillText(shorten(pen, box.named ? name : String(r), box.left - 10), box.left - 7, (r + 0.5) * box.high);
    });
    pen.textAlign = "center";
    for (const tick of wholeTicks(0, columns.length - 1, Math.floor((box.right - box.left) / 60))) {
      pen.fillText(String(columns[tick]), box.left + (tick + 0.5) * box.wide, box.height - 9);
    }
    if (this.cell) {
      pen.strokeStyle = cssValue("--ink");
      pen.lineWidth = 1.5;
      pen.strokeRect(box.left + this.cell[0] * box.wide, this.cell[1] * box.high, Math.max(box.wide - gap, 2), box.high - 1);
    }
  }

  pointed(event) {
    const box = this.layout(), area = this.plot.getBoundingClientRect();
    const column = Math.floor((event.clientX - area.left - box.left) / box.wide);
    const row = Math.floor((event.clientY - area.top) / box.high);
    const inside = column >= 0 && column < this.data.columns.length && row >= 0 && row < this.data.rows.length;
    if (inside) this.show(column, row); else this.leave();
  }

  key(event) {
    const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    if (event.key === "Escape") this.leave();
    if (!moves[event.key]) return;
    event.preventDefault();
    const [c, r] = this.cell ? this.cell.map((v, i) => v + moves[event.key][i]) : [0, 0];
    this.show(Math.min(Math.max(c, 0), this.data.columns.length - 1), Math.min(Math.max(r, 0), this.data.rows.length - 1));
    announce(this.tooltip.textContent);
  }

  show(column, row) {
    const fresh = !this.cell || this.cell[0] !== column || this.cell[1] !== row;
    this.cell = [column, row];
    if (fresh) this.draw();
    const {columns, rows, values} = this.data;
    const total = values[column].reduce((sum, v) => sum + v, 0);
    this.tooltip.replaceChildren(el("b", {}, `${this.options.label} ${columns[column]}`),
      `${rows[row]}: ${format.whole(values[column][row])} of ${format.whole(total)} ${this.options.unit}`);
    this.tooltip.hidden = false;
    const box = this.layout();
    const x = box.left + (column + 0.5) * box.wide, wide = this.tooltip.offsetWidth;
    this.tooltip.style.left = `${Math.max(x + 12 + wide > box.width ? x - wide - 12 : x + 12, 0)}px`;
    this.tooltip.style.top = `${Math.max((row + 0.5) * box.high - this.tooltip.offsetHeight - 8, -30)}px`;
  }

  leave() {
    this.tooltip.hidden = true;
    if (this.cell) { this.cell = null; this.draw(); }
  }

  values() {
    const heads = [this.options.label.toLowerCase(), ...this.data.rows, "all"];
    const rows = this.data.columns.map((name, c) => [name, ...this.data.values[c], this.data.values[c].reduce((sum, v) => sum + v, 0)]);
    return {heads, rows, text: rows.map((row) => row.map(String))};
  }
}

function shorten(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  while (text.length > 1 && pen.measureText(`${text}…`).width > width) text = text.slice(0, -1);
  return `${text}…`;
}

// Counts (true class, predicted class) as a table; rows are shaded by their share.
function confusionTable(counts, names) {
  const cells = [];
  const shade = () => cells.forEach(({node, share}) => {
    const color = heatColor(Math.sqrt(share));
    node.style.background = `rgb(${color.join(",")})`;
    node.style.color = luminance(color) < 0.179 ? "#fff" : "#000";
  });
  const body = counts.map((row, i) => {
    const total = Math.max(row.reduce((sum, v) => sum + v, 0), 1);
    return el("tr", {}, el("th", {scope: "row"}, names[i]), row.map((v, j) => {
      const title = `${names[i]} taken for ${names[j]}: ${v} of ${total}`;
      const node = el("td", {class: i === j ? "right" : null, title: i === j ? `${names[i]} recognized: ${v} of ${total}` : title}, v ? String(v) : el("span", {class: "unseen"}, "0"));
      cells.push({node, share: v / total});
      return node;
    }));
  });
  shade();
  themeListeners.push(shade);
  return el("table", {class: "confusion"},
    el("caption", {class: "unseen"}, "Confusion matrix: true classes in rows, predicted classes in columns"),
    el("thead", {}, el("tr", {}, el("td", {}), names.map((name) => el("th", {scope: "col"}, el("span", {}, name))))),
    el("tbody", {}, body));
}
