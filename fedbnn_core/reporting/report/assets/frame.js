"use strict";
// What line and bar charts share: axes, pointer, keyboard, tooltip.
//
// A chart is a slider over its x positions, so that the arrow keys move along it and a
// screen reader speaks the values of the position in its own way.

const themeListeners = [];

class Frame {
  // options: title, sub, label (of one x position), height, wide
  constructor(options) {
    this.options = options;
    this.margin = {top: 20, right: 14, bottom: 26, left: 52};
    this.at = null;
    this.width = 0;
    this.svg = svg("svg", {"aria-hidden": "true", focusable: "false"});
    this.tooltip = el("div", {class: "tooltip", hidden: true, "aria-hidden": "true"});
    this.plot = el("div", {
      class: "plot", tabindex: "0", role: "slider", "aria-label": options.title,
      "aria-orientation": "horizontal",
    }, this.svg, this.tooltip);
    this.head = el("figcaption", {}, el("h3", {}, options.title), options.sub ? el("span", {class: "sub"}, options.sub) : null);
    this.figure = el("figure", {class: options.wide ? "wide" : null, "data-chart": options.id}, this.head, this.plot);
    this.plot.addEventListener("pointermove", (event) => this.pointed(event));
    this.plot.addEventListener("pointerdown", (event) => this.pointed(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
    this.plot.addEventListener("blur", () => this.leave());
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => {
      const width = Math.floor(this.plot.clientWidth);
      if (width && width !== this.width) { this.width = width; this.draw(); }
    }).observe(this.plot);
    themeListeners.push(() => this.width && this.draw());
  }

  get inner() {
    const {top, right, bottom, left} = this.margin;
    return {left, top, right: this.width - right, bottom: this.options.height - bottom};
  }

  refresh() {
    this.describe();
    if (this.width) this.draw();
  }

  describe() {
    const count = this.count();
    this.plot.setAttribute("aria-valuemin", count ? this.position(0) : 0);
    this.plot.setAttribute("aria-valuemax", count ? this.position(count - 1) : 0);
    this.plot.setAttribute("aria-valuenow", count ? this.position(this.at ?? count - 1) : 0);
    this.plot.setAttribute("aria-valuetext", count ? this.spoken(this.at ?? count - 1) : "no values yet");
  }

  // Horizontal lines with labels, and labels below the axis.
  axes(yTicks, yFormat, xTicks) {
    const {left, right, top, bottom} = this.inner;
    const group = svg("g", {});
    for (const tick of yTicks) {
      const y = Math.round(this.y(tick)) + 0.5;
      group.append(
        svg("line", {class: "gridline", x1: left, x2: right, y1: y, y2: y}),
        svg("text", {x: left - 7, y: y + 4, "text-anchor": "end"}, yFormat(tick)));
    }
    for (const {value, text} of xTicks) {
      const x = this.x(value);
      group.append(svg("text", {x, y: bottom + 18, "text-anchor": "middle"}, text));
    }
    group.append(svg("line", {class: "axis", x1: left, x2: right, y1: bottom + 0.5, y2: bottom + 0.5}));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.options.height}`);
    this.svg.setAttribute("height", this.options.height);
    void top;
    return group;
  }

  pointed(event) {
    const box = this.plot.getBoundingClientRect();
    const index = this.indexAt(event.clientX - box.left);
    if (index !== null) this.show(index, event.clientY - box.top);
  }

  key(event) {
    const count = this.count();
    if (!count) return;
    const page = Math.max(Math.round(count / 10), 1);
    const now = this.at ?? (["ArrowRight", "PageDown", "ArrowUp"].includes(event.key) ? -1 : count);
    const target = {
      ArrowLeft: now - 1, ArrowRight: now + 1, ArrowDown: now - 1, ArrowUp: now + 1,
      PageUp: now - page, PageDown: now + page, Home: 0, End: count - 1,
    }[event.key];
    if (event.key === "Escape") { this.leave(); return; }
    if (target === undefined) return;
    event.preventDefault();
    this.show(Math.min(Math.max(target, 0), count - 1), null);
    this.describe();
  }

  show(index, pointerY) {
    this.at = index;
    this.markPosition(index, pointerY);
    this.tooltip.replaceChildren(...this.tip(index, pointerY));
    this.tooltip.hidden = false;
    const x = this.x(this.place(index));
    const wide = this.tooltip.offsetWidth, high = this.tooltip.offsetHeight;
    // Beside the position, on the side that has room; never over the edge.
    let left = x + 14;
    if (left + wide > this.width) left = x - wide - 14;
    this.tooltip.style.left = `${Math.max(Math.min(left, this.width - wide), 0)}px`;
    const top = pointerY === null ? this.margin.top : pointerY - high / 2;
    this.tooltip.style.top = `${Math.max(Math.min(top, this.options.height - high), -8)}px`;
  }

  leave() {
    this.at = null;
    this.tooltip.hidden = true;
    this.unmark();
  }
}
