"use strict";
// The sections of the page. Each is {id, title, caption, body, update} or null.

// The models that a round is scored as, where the clients send rotations.
const CANDIDATES = {"": "sign(w̃), deployed", weights: "sign(w), averaged weights", rotated: "sign(rot w), rotated weights"};
const isRotated = (run) => run.rounds.columns.val_accuracy_rotated !== undefined;

function bestRound(run) {
  if (run.summary) return run.summary.best_round;
  const {round, columns} = run.rounds, scores = columns.val_accuracy || [];
  let best = null;
  scores.forEach((v, i) => { if (v !== null && (best === null || v > scores[best])) best = i; });
  return best === null ? null : round[best];
}

const last = (values) => (values || []).findLast((v) => v !== null);
const sum = (values) => (values || []).reduce((total, v) => total + (v || 0), 0);

// Traffic as papers count it (trained numbers of the replies that counted, no headers),
// and what one message costs per weight of the network.
function trafficDetails(columns, key) {
  const counted = sum(columns[`${key}_nominal`]), bits = last(columns[key.replace("bytes", "bits")]);
  return [counted ? `${format.bytes(counted)} nominal` : "", bits === undefined ? "" : `${bits.toFixed(2)} bits per weight`].filter(Boolean);
}

// The bytes of all rounds until one reached an accuracy; null if none did.
function bytesTo(run, target) {
  const {val_accuracy: reached = [], bytes_up: up, bytes_down: down} = run.rounds.columns;
  const at = reached.findIndex((value) => value !== null && value >= target);
  return at < 0 ? null : sum(up.slice(0, at + 1)) + sum(down.slice(0, at + 1));
}

function tile(label, value, detail, main) {
  return el("div", {class: main ? "tile main" : "tile"}, el("div", {class: "label"}, label), el("div", {class: "value"}, value), el("div", {class: "detail"}, detail || ""));
}

function tiles(run) {
  const {summary, rounds, config} = run, {columns} = rounds;
  const done = rounds.round.length, found = [];
  const shown = run.binary ? "1-bit model" : "float model";
  if (summary) {
    found.push(tile(`Test accuracy, ${shown}`, format.percent(summary.test_accuracy), `best round ${summary.best_round} of ${summary.rounds} · validation ${format.percent(summary.val_accuracy)}`, true));
  } else {
    const best = bestRound(run), now = last(columns.val_accuracy);
    found.push(tile("Validation accuracy so far", best ? format.percent(columns.val_accuracy[rounds.round.indexOf(best)]) : "–", best ? `best round ${best} · now ${format.percent(now)}` : "not evaluated yet", true));
  }
  if (summary && summary.ptb_test_accuracy !== undefined) {
    found.push(tile("Test accuracy, then binarized", format.percent(summary.ptb_test_accuracy), "signs of the trained float weights"));
  }
  if (summary) {
    const bytes = run.packed_bytes || summary.one_bit_bytes;
    if (bytes) found.push(tile(run.packed_bytes ? "Size of the packed file" : "Size as 1-bit model", format.bytes(bytes), `${(summary.float32_bytes / bytes).toFixed(1)}× smaller than float32 (${format.bytes(summary.float32_bytes)})`));
    else found.push(tile("Size as float32", format.bytes(summary.float32_bytes), ""));
  }
  if (run.benchmark && run.benchmark.packed_ms) {
    const {packed_ms: ms, speedup_vs_best_float32: times} = run.benchmark;
    found.push(tile("Time for one image, measured", `${+ms.toPrecision(3)} ms`, times ? `${times.toFixed(1)}× faster than float32 · 1 thread` : "1 thread"));
  }
  const epsilon = last(columns.epsilon);
  if (epsilon !== undefined) found.push(tile("Privacy spent", `ε = ${+epsilon.toPrecision(3)}`, `δ = ${config["privacy-delta"]}`));
  found.push(tile("Sent by the clients", format.bytes(sum(columns.bytes_up)), trafficDetails(columns, "bytes_up").join(" · ")));
  found.push(tile("Sent to the clients", format.bytes(sum(columns.bytes_down)), trafficDetails(columns, "bytes_down").join(" · ")));
  const seconds = sum(Object.keys(columns).filter((name) => name.startsWith("seconds_")).map((name) => sum(columns[name])));
  found.push(tile("Training time", format.duration(summary ? summary.seconds : seconds), done ? `${done} rounds · ${format.seconds(seconds / done)} each` : ""));
  const rejected = rounds.rejected.length;
  found.push(tile("Clients", format.whole(run.num_clients || 0), `${config["clients-per-round"]} per round · ${rejected ? `${rejected} replies rejected` : "no reply rejected"}`));
  return found;
}

function resultSection(run, others) {
  const holder = el("div", {class: "tiles"});
  const update = (now) => holder.replaceChildren(...tiles(now));
  update(run);
  return {id: "result", title: "Result", body: [holder, others.length ? comparison([run, ...others]) : null], update};
}

function comparison(runs) {
  const cell = (v, show) => (v === null || v === undefined ? "–" : show(v));
  const traffic = (columns, key) => [format.bytes(sum(columns[key])), ...trafficDetails(columns, key)].join(", ");
  // The highest accuracy that every run has reached.
  const target = Math.min(...runs.map((run) => Math.max(0, ...(run.rounds.columns.val_accuracy || []).filter((v) => v !== null))));
  const binarized = runs.some((run) => run.summary && run.summary.ptb_test_accuracy !== undefined);
  const rows = runs.map((run) => {
    const s = run.summary || {}, {columns} = run.rounds;
    const after = binarized ? [cell(s.ptb_test_accuracy, format.percent)] : [];
    return [run.label, cell(s.test_accuracy, format.percent), ...after, cell(s.val_accuracy, format.percent), cell(s.best_round, (v) => `${v} of ${s.rounds}`),
      cell(run.packed_bytes || s.one_bit_bytes || s.float32_bytes, format.bytes), traffic(columns, "bytes_up"), traffic(columns, "bytes_down"), cell(bytesTo(run, target), format.bytes), cell(s.seconds, format.duration)];
  });
  return el("div", {class: "card scroll free", style: {marginTop: "12px"}, tabindex: "0", role: "region", "aria-label": "Comparison of runs"},
    table("Comparison of runs", ["Run", "Test accuracy", ...(binarized ? ["then binarized"] : []), "Validation", "Best round", "Model size", "Sent up", "Sent down", `Both to ${format.percent(target)}`, "Time"], rows));
}

// Runs of different length share one axis: all rounds that any of them has.
function allRounds(runs) {
  return [...new Set(runs.flatMap((run) => run.rounds.round))].sort((a, b) => a - b);
}

function onRounds(rounds, run, key) {
  const values = run.rounds.columns[key];
  const at = new Map(run.rounds.round.map((round, i) => [round, values ? values[i] : null]));
  return rounds.map((round) => at.get(round) ?? null);
}

function convergenceSeries(run, others, kind) {
  const rounds = allRounds([run, ...others]);
  const names = isRotated(run) ? CANDIDATES : {};
  const prefix = `val_${kind}`, own = Object.keys(run.rounds.columns).filter((key) => key === prefix || key.startsWith(`${prefix}_`));
  const suffix = (key) => key.slice(prefix.length + 1);
  const order = Object.keys(names);
  own.sort((a, b) => order.indexOf(suffix(a)) - order.indexOf(suffix(b)));
  const series = own.map((key, i) => ({
    name: names[suffix(key)] || (suffix(key) ? `${run.label}: ${suffix(key)}` : run.label),
    color: `var(--s${i % 8 + 1})`, dash: i ? (i === 1 ? "6 4" : "2 4") : null, width: i ? 1.6 : 2.6, values: onRounds(rounds, run, key),
  }));
  others.forEach((other, i) => {
    series.push({name: other.label, color: `var(--s${(own.length + i) % 8 + 1})`, width: 2, values: onRounds(rounds, other, prefix)});
  });
  return series;
}

function convergenceSection(run, others) {
  const group = [];
  const accuracy = new LineChart({id: "accuracy", title: "Validation accuracy", sub: "share of images recognized, by round", wide: true, height: 300, format: format.percent, tickFormat: format.percentTick, group});
  const loss = new LineChart({id: "loss", title: "Validation loss", sub: "cross-entropy", group, height: 220});
  const train = new LineChart({id: "train-loss", title: "Training loss", sub: "mean of the clients", group, height: 220});
  const update = (now) => {
    const rounds = allRounds([now, ...others]), best = bestRound(now);
    accuracy.setData({rounds, best, series: convergenceSeries(now, others, "accuracy")});
    loss.setData({rounds, best, series: convergenceSeries(now, others, "loss")});
    train.setData({rounds, best, series: [{name: "training loss", color: "var(--s1)", values: onRounds(rounds, now, "train_loss")}]});
  };
  update(run);
  return {
    id: "convergence", title: "Convergence",
    caption: isRotated(run) ? "sign(w̃) is the model that is deployed. sign(w) shows what the averaged weights alone would give, sign(rot w) the averaged rotated weights." : null,
    body: [el("div", {class: "grid"}, accuracy.figure, loss.figure, train.figure)], update,
  };
}

function clientsSection(run) {
  const {partition} = run, body = [], grid = el("div", {class: "grid"});
  const few = partition.clients.length < partition.total_clients ? `${partition.clients.length} of ${partition.total_clients} clients shown` : `${partition.total_clients} clients`;
  if (partition.counts) {
    const map = new HeatMap({id: "partition", title: "Who holds what", sub: `training samples by class; ${few}, ${run.config.partition} partition`, label: "Client", unit: "samples",
      description: `Heat map of ${partition.clients.length} clients and ${run.class_names.length} classes; a client holds ${Math.min(...partition.sizes)} to ${Math.max(...partition.sizes)} samples.`},
    {columns: partition.clients, rows: run.class_names, values: partition.counts});
    grid.append(map.figure);
  } else if (partition.sizes.length) {
    const sizes = new BarChart({id: "sizes", title: "Samples per client", sub: few, label: "Client", wide: true});
    sizes.setData({labels: partition.clients, series: [{name: "samples", color: "var(--s1)", values: partition.sizes}]});
    grid.append(sizes.figure);
  }
  const part = new BarChart({id: "participation", title: "Who took part", sub: "replies of each client that counted, were rejected or did not come", label: "Client", wide: true});
  grid.append(part.figure);
  const rejected = el("div", {});
  const update = (now) => {
    const count = Math.max(now.num_clients || 0, 1);
    const [good, bad, late] = [0, 0, 0].map(() => new Array(count).fill(0));
    for (const clients of now.rounds.clients) for (const client of clients) if (client < count) good[client] += 1;
    for (const clients of now.rounds.missing) for (const client of clients) if (client < count) late[client] += 1;
    for (const [, client] of now.rounds.rejected) if (client >= 0 && client < count) bad[client] += 1;
    const series = [{name: "took part", color: "var(--s1)", values: good}];
    if (now.rounds.rejected.length) series.push({name: "rejected", color: "var(--s2)", values: bad});
    if (late.some(Boolean)) series.push({name: "no reply in time", color: "var(--s5)", values: late});
    part.setData({labels: good.map((_, i) => i), series});
    rejected.replaceChildren(...rejectedTable(now.rounds.rejected));
  };
  update(run);
  body.push(...run.notes.map((note) => el("p", {class: "note"}, note)), grid, rejected);
  return {id: "clients", title: "Data and clients", body, update};
}

function rejectedTable(entries) {
  if (!entries.length) return [el("p", {class: "note"}, "No reply was rejected.")];
  const most = 200;
  const rows = entries.slice(-most).reverse().map(([round, client, reason]) => el("tr", {}, el("td", {class: "num"}, String(round)), el("td", {class: "num"}, client < 0 ? "unknown" : String(client)), el("td", {class: "wrap"}, reason || "")));
  return [
    el("h3", {style: {margin: "16px 0 4px"}}, entries.length > most ? `Rejected replies: the newest ${most} of ${entries.length}` : `Rejected replies: ${entries.length}`),
    el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Rejected replies"},
      el("table", {}, el("thead", {}, el("tr", {}, el("th", {scope: "col", class: "num"}, "Round"), el("th", {scope: "col", class: "num"}, "Client"), el("th", {scope: "col"}, "Reason"))), el("tbody", {}, rows)))];
}

function mistakesSection(run) {
  const counts = run.summary && run.summary.test_confusion;
  if (!counts) return null;
  const names = run.class_names, body = el("div", {class: "grid"}), small = names.length <= 30;
  if (small) {
    body.append(el("div", {class: names.length > 12 ? "card wide" : "card"}, el("h3", {}, "Confusion matrix"),
      el("p", {class: "caption"}, "Rows are true classes, columns what the model said; shades show the share of the row."),
      el("div", {class: "scroll free", tabindex: "0", role: "region", "aria-label": "Confusion matrix"}, confusionTable(counts, names))));
  } else {
    // A column of the heat map is a true class, so that its total is that class's.
    const map = new HeatMap({id: "confusion", title: "Confusion matrix", sub: "columns are true classes, rows what the model said", label: "True class", unit: "images", description: `${names.length} classes.`}, {columns: names, rows: names, values: counts});
    body.append(map.figure);
  }
  if (run.mistakes && run.mistakes.length) {
    body.append(el("div", {class: names.length > 12 ? "card wide" : "card"}, el("h3", {}, "Images it got wrong"),
      el("p", {class: "caption"}, "The most frequent confusions first, and of each those that the model was surest of."),
      el("ul", {class: "wrongs"}, run.mistakes.map((one) => el("li", {},
        el("img", {src: one.image, alt: `${names[one.true]}, taken for ${names[one.predicted]}`}),
        el("div", {}, names[one.true]), el("div", {class: "said"}, `→ ${names[one.predicted]}`),
        el("div", {class: "was"}, `${Math.round(100 * one.confidence)} % sure`))))));
  }
  return {id: "mistakes", title: "What it gets wrong", caption: "On the test half, which neither training nor the choice of the best round has seen.", body: [body]};
}

function costSection(run) {
  const group = [];
  const bytes = new LineChart({id: "bytes", title: "Traffic", sub: "all clients together, by round", format: format.bytes, tickFormat: format.bytes, zero: true, group});
  const seconds = new LineChart({id: "seconds", title: "Time", sub: "seconds of a round", format: format.seconds, zero: true, group});
  const rate = new LineChart({id: "lr", title: "Learning rate", sub: "of the clients' SGD", zero: true, group, height: 180});
  const clock = new LineChart({id: "clock", title: "Sharpness t and k", sub: "of the surrogate gradient; log scale", log: true, group, height: 180});
  const update = (now) => {
    const {round: rounds, columns} = now.rounds, best = bestRound(now);
    const series = (names) => names.filter(([key]) => columns[key]).map(([key, name], i) => ({name, color: `var(--s${i + 1})`, dash: i === 1 ? "6 4" : i ? "2 4" : null, values: columns[key]}));
    const traffic = [["bytes_up", "clients to server"], ["bytes_down", "server to clients"]];
    // What papers count; close to the measured bytes unless a method compresses.
    for (const [key, name] of [...traffic]) {
      const counted = sum(columns[`${key}_nominal`]);
      if (counted && counted < 0.9 * sum(columns[key])) traffic.push([`${key}_nominal`, `${name}, as papers count`]);
    }
    bytes.setData({rounds, best, series: series(traffic)});
    seconds.setData({rounds, best, series: series([["seconds_train", "training"], ["seconds_aggregate", "aggregation"], ["seconds_evaluate", "evaluation"]])});
    rate.setData({rounds, best, series: series([["lr", "learning rate"]])});
    clock.setData({rounds, best, series: [...series([["t", "t"]]), {name: "k = max(1/t, 1)", color: "var(--s2)", dash: "6 4", values: columns.t.map((t) => (t ? Math.max(1 / t, 1) : null))}]});
  };
  update(run);
  return {id: "cost", title: "Cost and schedule", body: [el("div", {class: "grid"}, bytes.figure, seconds.figure, rate.figure, run.binary ? clock.figure : null)], update};
}

function configSection(run) {
  const changed = new Set(run.changed);
  const rows = Object.entries(run.config).map(([key, value]) => el("tr", {class: changed.has(key) ? "changed" : null},
    el("th", {scope: "row", class: "mono"}, key), el("td", {class: "mono wrap"}, value === "" ? "–" : String(value)), el("td", {}, changed.has(key) ? "changed" : "default")));
  const quoted = (key) => `-c '${key}=${run.config[key]}'`;
  const command = ["fedbnn run", `--clients ${run.num_clients}`, ...run.changed.filter((key) => key !== "output-dir").map(quoted)].join(" ");
  const facts = Object.entries(run.versions).map(([key, value]) => `${key.replace("_", " ")} ${value}`);
  if (run.summary) facts.push(`best model SHA-256 ${run.summary.best_sha256.slice(0, 16)}…`);
  return {
    id: "config", title: "Configuration", caption: "To run it again:",
    body: [el("pre", {tabindex: "0"}, command), el("details", {}, el("summary", {}, `All ${rows.length} keys`),
      el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Configuration"}, el("table", {}, el("thead", {}, el("tr", {}, ["Key", "Value", ""].map((head) => el("th", {scope: "col"}, head)))), el("tbody", {}, rows)))),
    el("p", {class: "note", style: {marginTop: "12px"}}, facts.join(" · "))],
  };
}
