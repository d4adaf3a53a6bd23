"use strict";
// Build the page from its data; on a live page, ask for new rounds every second.

function describeRun(run) {
  const {config} = run;
  document.getElementById("lead").textContent = `${format.whole(run.num_clients)} clients (${config.partition} partition), ${config["clients-per-round"]} per round, ${config["local-epochs"]} local epochs, ${run.rounds.round.length} of ${run.num_rounds} rounds`;
}

function buildPage(data) {
  const [run, ...others] = data.runs, {config} = run;
  themeListeners.length = 0;
  document.getElementById("kicker").textContent = `FedBNN ${data.live ? "dashboard" : "report"} · ${run.name}`;
  document.getElementById("title").textContent = `${run.method_name}: ${config.model} on ${config.dataset}`;
  describeRun(run);
  const sections = [
    resultSection(run, others), convergenceSection(run, others), layersSection(run), clientsSection(run),
    mistakesSection(run), costSection(run), configSection(run),
  ].filter(Boolean);
  document.getElementById("main").replaceChildren(...sections.map(({id, title, caption, body}) => el("section", {id, "aria-labelledby": `${id}-title`},
    el("h2", {id: `${id}-title`}, title), caption ? el("p", {class: "caption"}, caption) : null, ...body)));
  document.getElementById("nav").replaceChildren(...sections.map(({id, title}) => el("a", {href: `#${id}`}, title)));
  document.getElementById("footer").textContent = `Made by FedBNN ${data.version}. The page holds all its data and asks the network for nothing${data.live ? " but new rounds from this machine" : ""}.`;
  return sections;
}

function watchTheme() {
  const redraw = () => themeListeners.forEach((listener) => listener());
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", redraw);
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  watchTheme();
  const sections = buildPage(data);
  if (data.live) followRun(data, sections);
}
start();
