"use strict";
// Follow a run: ask for new rounds every second and draw what came.

const POLL_MS = 1000;

function append(rounds, news) {
  const before = rounds.round.length;
  const fill = (values) => values || new Array(before).fill(null);
  const none = () => new Array(news.round.length).fill(null);
  const names = new Set([...Object.keys(rounds.columns), ...Object.keys(news.columns)]);
  for (const name of names) rounds.columns[name] = [...fill(rounds.columns[name]), ...(news.columns[name] || none())];
  for (const [figure, layers] of Object.entries(rounds.layers)) {
    rounds.layers[figure] = layers.map((values, i) => {
      const l = news.layer_names.indexOf(rounds.layer_names[i]);
      return [...values, ...(news.layers[figure] && l >= 0 ? news.layers[figure][l] : none())];
    });
  }
  rounds.round.push(...news.round);
  rounds.clients.push(...news.clients);
  rounds.missing.push(...news.missing);
  rounds.rejected.push(...news.rejected);
}

function showStatus(data, answer) {
  const holder = document.getElementById("live"), run = data.runs[0];
  holder.hidden = false;
  holder.className = "status";
  const done = run.rounds.round.length ? run.rounds.round[run.rounds.round.length - 1] : 0;
  const words = [];
  if (!answer) words.push(el("span", {class: "now"}, "No answer from the dashboard"), el("span", {class: "quietly"}, "Start it again with fedbnn dashboard; this page goes on by itself."));
  else if (answer.finished) words.push(el("span", {class: "now"}, "The run has finished."));
  else {
    words.push(el("span", {class: "now"}, `${done} of ${run.num_rounds} rounds done`));
    if (answer.seconds_left) words.push(el("span", {}, `${format.duration(answer.seconds_left)} left`));
    if (answer.now) words.push(el("span", {class: "quietly"}, `round ${answer.now.round}: ${answer.now.done} of ${answer.now.clients} clients done${answer.now.rejected ? `, ${answer.now.rejected} rejected` : ""}`));
  }
  if (data.demo) words.push(el("a", {href: "demo"}, "Try the model"));
  holder.replaceChildren(el("div", {class: "row"}, words));
  if (!answer || !answer.finished) holder.append(el("progress", {max: run.num_rounds, value: done, "aria-label": "Rounds done"}));
}

async function followRun(data, sections) {
  let wasFinished = data.runs[0].summary !== null;
  const ask = async (path) => {
    const answer = await fetch(path, {cache: "no-store"});
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  };
  const rebuild = async () => {
    const fresh = await ask("api/run");
    Object.assign(data, fresh);
    sections = buildPage(data);
    wasFinished = data.runs[0].summary !== null;
  };
  const step = async () => {
    const run = data.runs[0], {rounds} = run;
    const after = rounds.round.length ? rounds.round[rounds.round.length - 1] : 0;
    const answer = await ask(`api/rounds?after=${after}&generation=${data.generation}`);
    if (answer.stale || answer.finished !== wasFinished || (answer.rounds.round.length && !rounds.round.length)) await rebuild();
    else if (answer.rounds.round.length) {
      append(rounds, answer.rounds);
      describeRun(run);
      sections.forEach((section) => section.update && section.update(run));
      announce(`Round ${rounds.round[rounds.round.length - 1]} of ${run.num_rounds} done`);
    }
    showStatus(data, answer);
  };
  for (;;) {
    try { await step(); } catch { showStatus(data, null); }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
