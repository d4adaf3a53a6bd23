"use strict";
// The paper's panels: each layer's coefficients and angular bias over the rounds.

// Ordered hues of equal lightness: neighbours in the network are neighbours in colour.
function layerColor(index, count) {
  const hue = 262 + 188 * (count > 1 ? index / (count - 1) : 0);
  return `oklch(var(--ramp-lightness) var(--ramp-chroma) ${(hue % 360).toFixed(0)})`;
}

// Many names lose the parts that all of them begin or end with.
function shortNames(names) {
  if (names.length <= 8) return names;
  let parts = names.map((name) => name.split("."));
  const shared = (at) => parts.every((one) => one.length > 1 && one.at(at) === parts[0].at(at));
  while (shared(0)) parts = parts.map((one) => one.slice(1));
  while (shared(-1)) parts = parts.map((one) => one.slice(0, -1));
  return parts.map((one) => one.join("."));
}

const each = (a, b, f) => a.map((layer, l) => layer.map((v, i) => (v === null || b[l][i] === null ? null : f(v, b[l][i]))));

// Panels for what the run logged; FedBNN's alpha and beta become three coefficients.
function layerPanels(layers) {
  const panels = [];
  if (layers.alpha && layers.beta) {
    panels.push(
      {id: "one-minus-alpha", title: "1 − α", sub: "weight of w, the client's own", values: layers.alpha.map((layer) => layer.map((v) => (v === null ? null : 1 - v)))},
      {id: "alpha-beta", title: "α β", sub: "weight of rot(w), the rotated", values: each(layers.alpha, layers.beta, (a, b) => a * b)},
      {id: "alpha-one-minus-beta", title: "α (1 − β)", sub: "weight of the server's", values: each(layers.alpha, layers.beta, (a, b) => a * (1 - b))});
  }
  if (layers.lambda) panels.push({id: "lambda", title: "λ", sub: "client's part in the fused weights", values: layers.lambda});
  const known = ["alpha", "beta", "lambda", "cos_phi"];
  for (const [name, values] of Object.entries(layers)) {
    if (!known.includes(name)) panels.push({id: name, title: name.replaceAll("_", " "), sub: "", values});
  }
  if (layers.cos_phi) {
    panels.push({id: "cos-phi", title: "Angular bias cos φ", sub: "how close the rotated weights are to their signs; 1 is aligned", values: layers.cos_phi, wide: true});
  }
  return panels.filter(({values}) => values.some((layer) => layer.some((v) => v !== null)));
}

function layersSection(run) {
  const {layer_names: names, layers} = run.rounds;
  if (!names || !names.length) return null;
  const shown = shortNames(names), group = [], hidden = new Set();
  const charts = layerPanels(layers).map((panel) => new LineChart({...panel, format: format.share, legend: false, group, height: panel.wide ? 250 : 220}));
  const chips = shown.map((name, i) => {
    const chip = el("button", {
      type: "button", class: "chip", "aria-pressed": "true", title: names[i],
      onclick: () => {
        if (hidden.has(name)) hidden.delete(name); else hidden.add(name);
        chip.setAttribute("aria-pressed", String(!hidden.has(name)));
        charts.forEach((chart) => chart.setHidden(hidden));
      },
      onpointerenter: () => charts.forEach((chart) => chart.emphasise(hidden.has(name) ? null : name)),
      onpointerleave: () => charts.forEach((chart) => chart.emphasise(null)),
    }, el("span", {class: "swatch", style: {borderTopColor: layerColor(i, names.length)}}), name);
    return chip;
  });
  const update = (now) => {
    const panels = layerPanels(now.rounds.layers);
    charts.forEach((chart, c) => chart.setData({
      rounds: now.rounds.round,
      best: bestRound(now),
      series: shown.map((name, i) => ({name, color: layerColor(i, names.length), width: names.length <= 8 ? 2 : now.rounds.round.length > 400 ? 1 : 1.4, values: panels[c].values[i]})),
    }));
  };
  update(run);
  return {
    id: "layers", title: "Layer by layer",
    caption: layers.alpha && layers.beta
      ? "Each binary layer mixes three weights: (1 − α) of its own, α β of the rotated, α (1 − β) of the server's. The three add up to 1. All of it is learned; colours run from the first layer to the last."
      : "Figures of each binary layer; colours run from the first layer to the last.",
    body: [el("div", {class: "legend", role: "group", "aria-label": "Show or hide layers"}, chips), el("div", {class: "grid", style: {marginTop: "12px"}}, charts.map((chart) => chart.figure))],
    update,
  };
}
