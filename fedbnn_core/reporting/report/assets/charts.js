"use strict";
// Line charts over rounds and bar charts over clients.

// options: id, title, sub, height, wide, format, tickFormat, log, zero, legend, group
// data: {rounds, series: [{name, color, dash, width, values}], best}
class LineChart extends Frame {
  constructor(options) {
    super({height: 240, format: format.plain, ...options});
    this.data = {rounds: [], series: [], best: null};
    this.hidden = new Set();
    this.strong = null;
    this.legend = el("ul", {class: "legend"});
    if (options.legend !== false) this.figure.append(this.legend);
    this.figure.append(valuesTable(options.title, () => this.values()));
    if (options.group) options.group.push(this);
  }

  setData(data) {
    this.data = data;
    this.legend.replaceChildren(...data.series.map((series) => el("li", {}, swatch(series), series.name)));
    this.refresh();
  }

  count() { return this.data.rounds.length; }
  position(index) { return this.data.rounds[index]; }
  place(index) { return this.data.rounds[index]; }
  shown() { return this.data.series.filter((series) => !this.hidden.has(series.name)); }

  x(round) {
    const {left, right} = this.inner, {rounds} = this.data;
    const first = rounds[0], last = rounds[rounds.length - 1];
    return first === last ? (left + right) / 2 : left + (right - left) * (round - first) / (last - first);
  }

  y(value) {
    const {top, bottom} = this.inner, [low, high] = this.range;
    const share = this.options.log
      ? (Math.log10(value) - Math.log10(low)) / (Math.log10(high) - Math.log10(low))
      : (value - low) / (high - low);
    return bottom - (bottom - top) * share;
  }

  findRange() {
    let low = Infinity, high = -Infinity;
    for (const {values} of this.shown()) {
      for (const v of values) {
        if (v === null || (this.options.log && v <= 0)) continue;
        if (v < low) low = v;
        if (v > high) high = v;
      }
    }
    if (low > high) return [0, 1];
    if (this.options.log) return low === high ? [low / 2, high * 2] : [low, high];
    if (this.options.zero) low = Math.min(low, 0);
    const pad = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5;
    return [this.options.zero && low === 0 ? 0 : low - pad, high + pad];
  }

  yTicks() {
    const [low, high] = this.range;
    if (!this.options.log) return niceTicks(low, high, Math.max(this.options.height / 48, 2));
    const powers = [];
    for (let p = Math.ceil(Math.log10(low) - 1e-9); p <= Math.log10(high) + 1e-9; p += 1) powers.push(10 ** p);
    return powers.length > 1 ? powers : [low, high];
  }

  draw() {
    const {rounds, best} = this.data;
    if (!rounds.length) { this.svg.replaceChildren(); return; }
    this.range = this.findRange();
    const {left, right, top, bottom} = this.inner;
    const ticks = wholeTicks(rounds[0], rounds[rounds.length - 1], Math.max(Math.floor((right - left) / 80), 1));
    const yTicks = this.yTicks();
    const parts = [this.axes(yTicks, this.options.tickFormat || (this.options.log ? format.tick : evenTicks(yTicks)), ticks.map((value) => ({value, text: format.whole(value)})))];
    if (best && best >= rounds[0] && best <= rounds[rounds.length - 1]) {
      const x = Math.round(this.x(best)) + 0.5;
      const anchor = x > right - 60 ? "end" : x < left + 60 ? "start" : "middle";
      parts.push(
        svg("line", {class: "best", x1: x, x2: x, y1: top, y2: bottom}),
        svg("text", {class: "best-label", x, y: top - 6, "text-anchor": anchor}, `best round ${format.whole(best)}`));
    }
    this.lines = this.shown().map((series) => this.line(series));
    this.cross = svg("g", {});
    this.svg.replaceChildren(...parts, ...this.lines, this.cross);
    this.applyStrong();
  }

  // One point per round that has a value; a round without one is bridged.
  line(series) {
    const {rounds} = this.data;
    const points = [];
    for (let i = 0; i < rounds.length; i += 1) {
      const v = series.values[i];
      if (v !== null && v !== undefined && !(this.options.log && v <= 0)) points.push(`${this.x(rounds[i]).toFixed(1)},${this.y(v).toFixed(1)}`);
    }
    const group = svg("g", {"data-series": series.name});
    group.append(svg("polyline", {
      class: "line", points: points.join(" "), "data-points": points.length,
      stroke: series.color, "stroke-width": series.width || 2, "stroke-dasharray": series.dash || null,
    }));
    // A line of a single point is invisible, and few points are easier seen as dots.
    if (points.length <= 40 && this.data.series.length <= 8) {
      for (const point of points) {
        const [cx, cy] = point.split(",");
        group.append(svg("circle", {cx, cy, r: points.length === 1 ? 4 : 2.5, fill: series.color}));
      }
    }
    return group;
  }

  indexAt(x) {
    const {left, right} = this.inner, {rounds} = this.data;
    if (!rounds.length) return null;
    const first = rounds[0], last = rounds[rounds.length - 1];
    const wanted = first + (last - first) * Math.min(Math.max((x - left) / (right - left), 0), 1);
    let low = 0, high = rounds.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (rounds[middle] <= wanted) low = middle; else high = middle;
    }
    return wanted - rounds[low] <= rounds[high] - wanted ? low : high;
  }

  nearest(index, pointerY) {
    if (pointerY === null) return null;
    let found = null, distance = 18;
    for (const series of this.shown()) {
      const v = series.values[index];
      if (v === null || v === undefined) continue;
      const d = Math.abs(this.y(v) - pointerY);
      if (d < distance) { distance = d; found = series.name; }
    }
    return found;
  }

  tip(index, pointerY) {
    const near = this.nearest(index, pointerY);
    const series = this.shown();
    const rows = el("div", {class: series.length > 12 ? "rows many" : "rows"});
    // Two columns are read downwards.
    const half = Math.ceil(series.length / 2);
    const ordered = series.length > 12 ? series.map((_, i) => series[(i % 2) * half + (i >> 1)]).filter(Boolean) : series;
    for (const one of ordered) {
      const v = one.values[index], mark = one.name === near ? "near" : null;
      rows.append(swatch(one), el("span", {class: mark}, one.name),
        el("span", {class: mark ? "num near" : "num"}, v === null || v === undefined ? "–" : this.options.format(v)));
    }
    return [el("b", {}, `Round ${format.whole(this.data.rounds[index])}`), rows];
  }

  spoken(index) {
    const named = this.shown().map((series) => {
      const v = series.values[index];
      return v === null || v === undefined ? null : `${series.name} ${this.options.format(v)}`;
    }).filter(Boolean);
    return `Round ${this.data.rounds[index]}: ${named.join(", ")}`;
  }

  markPosition(index, pointerY) {
    const group = this.options.group || [this];
    for (const chart of group) chart.drawCross(index);
    const near = this.shown().length > 8 ? this.nearest(index, pointerY) : null;
    for (const chart of group) chart.emphasise(near);
  }

  drawCross(index) {
    if (!this.width || !this.cross || index >= this.data.rounds.length) return;
    const {top, bottom} = this.inner;
    const x = this.x(this.data.rounds[index]);
    this.cross.replaceChildren(svg("line", {class: "cross", x1: Math.round(x) + 0.5, x2: Math.round(x) + 0.5, y1: top, y2: bottom}));
    for (const series of this.shown()) {
      const v = series.values[index];
      if (v !== null && v !== undefined) this.cross.append(svg("circle", {class: "dot", cx: x, cy: this.y(v), r: 3.5, fill: series.color}));
    }
  }

  unmark() {
    for (const chart of this.options.group || [this]) {
      if (chart.cross) chart.cross.replaceChildren();
      chart.emphasise(null);
    }
  }

  emphasise(name) {
    if (this.strong === name) return;
    this.strong = name;
    this.applyStrong();
  }

  applyStrong() {
    for (const group of this.lines || []) {
      const name = group.getAttribute("data-series");
      group.classList.toggle("dim", this.strong !== null && this.strong !== name);
    }
  }

  setHidden(names) {
    this.hidden = names;
    this.refresh();
  }

  values() {
    const heads = ["round", ...this.data.series.map((series) => series.name)];
    const rows = this.data.rounds.map((round, i) => [round, ...this.data.series.map((series) => series.values[i])]);
    const text = rows.map(([round, ...cells]) => [format.whole(round), ...cells.map((v) => (v === null || v === undefined ? "–" : this.options.format(v)))]);
    return {heads, rows, text};
  }
}

// options as above; data: {labels, series: [{name, color, values}], unit}
class BarChart extends Frame {
  constructor(options) {
    super({height: 170, format: format.whole, ...options});
    this.data = {labels: [], series: []};
    this.legend = el("ul", {class: "legend"});
    this.figure.append(this.legend, valuesTable(options.title, () => this.values()));
  }

  setData(data) {
    this.data = data;
    this.legend.replaceChildren(...(data.series.length > 1
      ? data.series.map((series) => el("li", {}, el("span", {class: "swatch box", style: {background: series.color}}), series.name)) : []));
    this.refresh();
  }

  count() { return this.data.labels.length; }
  position(index) { return this.data.labels[index]; }
  place(index) { return index; }

  x(index) {
    const {left, right} = this.inner;
    return left + (right - left) * (index + 0.5) / Math.max(this.count(), 1);
  }

  y(value) {
    const {top, bottom} = this.inner;
    return bottom - (bottom - top) * value / this.highest;
  }

  draw() {
    const {labels, series} = this.data;
    if (!labels.length) { this.svg.replaceChildren(); return; }
    const totals = labels.map((_, i) => series.reduce((sum, one) => sum + one.values[i], 0));
    this.highest = Math.max(...totals, 1) * 1.05;
    const {left, right, bottom} = this.inner;
    const step = (right - left) / labels.length;
    const wide = Math.max(step > 3 ? step - 1 : step * 0.9, 0.5);
    const ticks = wholeTicks(0, labels.length - 1, Math.floor((right - left) / 60));
    const yTicks = niceTicks(0, this.highest, 3).filter(Number.isInteger);
    const parts = [this.axes(yTicks, format.whole, ticks.map((value) => ({value, text: format.whole(labels[value])})))];
    this.cross = svg("g", {});
    const bars = svg("g", {});
    labels.forEach((label, i) => {
      let base = 0;
      for (const one of series) {
        const v = one.values[i];
        if (v) bars.append(svg("rect", {x: (this.x(i) - wide / 2).toFixed(2), width: wide.toFixed(2), y: this.y(base + v).toFixed(1), height: (this.y(base) - this.y(base + v)).toFixed(1), fill: one.color}));
        base += v;
      }
    });
    void bottom;
    this.svg.replaceChildren(...parts, bars, this.cross);
  }

  indexAt(x) {
    const {left, right} = this.inner;
    if (!this.count()) return null;
    return Math.min(Math.max(Math.floor((x - left) / (right - left) * this.count()), 0), this.count() - 1);
  }

  tip(index) {
    const rows = el("div", {class: "rows"});
    for (const one of this.data.series) {
      rows.append(el("span", {class: "swatch box", style: {background: one.color}}), el("span", {}, one.name), el("span", {class: "num"}, this.options.format(one.values[index])));
    }
    return [el("b", {}, `${this.options.label} ${this.data.labels[index]}`), rows];
  }

  spoken(index) {
    return `${this.options.label} ${this.data.labels[index]}: ${this.data.series.map((one) => `${one.name} ${one.values[index]}`).join(", ")}`;
  }

  markPosition(index) {
    const {top, bottom} = this.inner;
    const x = Math.round(this.x(index)) + 0.5;
    this.cross.replaceChildren(svg("line", {class: "cross", x1: x, x2: x, y1: top, y2: bottom}));
  }

  unmark() { if (this.cross) this.cross.replaceChildren(); }

  values() {
    const heads = [this.options.label.toLowerCase(), ...this.data.series.map((one) => one.name)];
    const rows = this.data.labels.map((label, i) => [label, ...this.data.series.map((one) => one.values[i])]);
    return {heads, rows, text: rows.map((row) => row.map(String))};
  }
}

// Labels of one axis have equally many decimals.
function evenTicks(ticks) {
  if (ticks.some((tick) => tick !== 0 && Math.abs(tick) < 1e-3)) return format.tick;
  const decimals = Math.max(0, ...ticks.map((tick) => (String(tick).split(".")[1] || "").length));
  return (tick) => tick.toLocaleString("en", {minimumFractionDigits: decimals, maximumFractionDigits: decimals});
}

function swatch(series) {
  return el("span", {class: series.dash ? "swatch dash" : "swatch", style: {borderTopColor: series.color}});
}
