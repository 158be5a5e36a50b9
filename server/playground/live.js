// Polls /metrics once a second and draws the whole server's figures. Knows nothing of prompts.

import { History, readMetrics } from "./metrics.js";
import { count, made, measure, percent, short } from "./words.js";

const PERIOD_MS = 1000;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

/** Poll until the page goes; `onReading` sees each reading. A hidden page asks nothing. */
export function startLive(onReading) {
  const history = new History();
  const poll = async () => {
    if (!document.hidden) await refresh(history, onReading);
    setTimeout(poll, PERIOD_MS);
  };
  poll();
}

async function refresh(history, onReading) {
  try {
    const response = await fetch("metrics", { cache: "no-store" });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const reading = readMetrics(await response.text());
    history.add(performance.now() / 1000, reading);
    draw(history, reading);
    onReading(reading);
  } catch {
    pulse("lost", "the server does not answer; asking again");
  }
}

function pulse(state, text) {
  const element = byId("pulse");
  document.querySelector("main").classList.toggle("stale", state === "lost");
  // A status that is written anew every second would be read aloud every second.
  if (element.dataset.state === state && element.textContent === text) return;
  element.dataset.state = state;
  element.textContent = text;
}

function draw(history, reading) {
  const minute = history.since();
  const step = history.since(1);
  pulse("live", "live");
  drawIdentity(reading);
  drawLoad(reading);
  if (minute === null) return;
  drawSpeed(history, step, minute, reading);
  drawLength(history, step, minute, reading);
  drawGain(minute, reading);
  drawGoodput(minute, reading);
  drawPositions(minute, reading);
  drawLengths(minute, reading);
}

function drawIdentity(reading) {
  const text = reading.model === null ? "" : `${reading.model} · version ${reading.version}`;
  if (byId("model").textContent !== text) byId("model").textContent = text;
}

function drawLoad(reading) {
  byId("load").textContent = `${count(reading.running)} / ${count(reading.waiting)}`;
  byId("kv").textContent = reading.usage === null ? "–" : percent(reading.usage, 1);
  byId("kv-meter").value = reading.usage ?? 0;
}

/** What stands where a figure has no traffic to come from. */
function quietly(reading) {
  return reading.committed ? "quiet for a minute" : "no traffic yet";
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function drawSpeed(history, step, minute, reading) {
  byId("speed").textContent = measure(step.speed);
  const mean = `last minute ${measure(minute.speed)}`;
  byId("speed-minute").textContent = minute.committed ? mean : quietly(reading);
  spark(byId("speed-spark"), history.steps().map(([ago, one]) => [ago, one.speed]), history.span);
}

function drawLength(history, step, minute, reading) {
  byId("k-now").textContent = step.length === null ? "idle" : step.length.toFixed(1);
  const mean = () => `last minute ${minute.length.toFixed(2)}`;
  byId("k-minute").textContent = minute.length === null ? quietly(reading) : mean();
  spark(byId("k-spark"), history.steps().map(([ago, one]) => [ago, one.length]), history.span);
}

function drawGain(minute, reading) {
  byId("gain").textContent = minute.gain === null ? "–" : `×${minute.gain.toFixed(2)}`;
  const idle = minute.committed ? "no forecast: K is not chosen" : quietly(reading);
  byId("gain-note").textContent = minute.gain === null ? idle : "measured, last minute";
}

function drawGoodput(minute, reading) {
  const known = reading.goodput !== null;
  byId("goodput").textContent = minute.goodRequests === null ? "–" : percent(minute.goodRequests);
  const some = `${count(minute.requests)} ended, last minute`;
  const none = known ? quietly(reading) : "not counted by this server";
  byId("goodput-note").textContent = minute.requests ? some : none;
}

function drawPositions({ positions, committed }, reading) {
  const seen = positions.some(({ reached }) => reached > 0);
  byId("alpha-quiet").hidden = seen;
  byId("alpha-quiet").textContent = committed ? "No drafts: K is 0." : sentence(quietly(reading));
  byId("alpha").hidden = !seen;
  if (!seen) return;
  const bars = fitted(byId("alpha"), positions.length, positionBar);
  positions.forEach((one, index) => fillPosition(bars[index], one, index));
}

function positionBar() {
  const bar = emptyBar();
  bar.well.append(made("div", "survival"));
  bar.item.append(made("div", "count"));
  return bar.item;
}

function fillPosition(item, { reached, alpha, survival }, index) {
  item.querySelector(".value").textContent = alpha === null ? "–" : alpha.toFixed(2);
  item.querySelector(".fill").style.setProperty("--share", alpha ?? 0);
  const mark = item.querySelector(".survival");
  mark.hidden = survival === null;
  mark.style.setProperty("--share", survival ?? 0);
  item.querySelector(".place").textContent = index;
  item.querySelector(".count").textContent = short(reached);
  const kept = alpha === null ? "" : `, ${percent(alpha, 1)} accepted`;
  const left = survival === null ? "" : `, survival ${percent(survival, 1)}`;
  describe(item, `position ${index}: ${count(reached)} reached${kept}${left}`);
}

function drawLengths({ lengths, rounds }, reading) {
  byId("ks-quiet").hidden = rounds > 0;
  byId("ks-quiet").textContent = sentence(quietly(reading));
  byId("ks").hidden = rounds <= 0;
  if (rounds <= 0) return;
  const bars = fitted(byId("ks"), lengths.length, () => emptyBar().item);
  lengths.forEach((times, index) => fillLength(bars[index], times / rounds, index));
}

function fillLength(item, share, index) {
  item.querySelector(".value").textContent = share > 0 ? share.toFixed(2) : "–";
  item.querySelector(".fill").style.setProperty("--share", share);
  item.querySelector(".place").textContent = index;
  describe(item, `K ${index}: ${percent(share, 1)} of rounds`);
}

/** The sentence behind a bar, for pointers and for screen readers. */
function describe(item, text) {
  item.title = text;
  item.setAttribute("aria-label", text);
}

/** The items of a chart, made anew only when their number changes. */
function fitted(list, wanted, make) {
  if (list.children.length !== wanted) list.replaceChildren(...Array.from({ length: wanted }, make));
  return list.children;
}

function emptyBar() {
  const item = document.createElement("li");
  const well = made("div", "well");
  well.append(made("div", "fill"));
  item.append(made("div", "value"), well, made("div", "place"));
  return { item, well };
}

/** A line over the last `span` seconds, with gaps where there is no value. */
function spark(svg, points, span) {
  const top = Math.max(1e-9, ...points.map(([, value]) => value ?? 0));
  const place = ([ago, value]) => `${(60 * (1 - ago / span)).toFixed(2)},${(19 - 18 * value / top).toFixed(2)}`;
  svg.replaceChildren(...runsOf(points).flatMap((run) => drawnRun(run.map(place), run, span)));
}

function runsOf(points) {
  const runs = [[]];
  for (const point of points) {
    if (point[1] === null) runs.push([]);
    else runs.at(-1).push(point);
  }
  return runs.filter((run) => run.length > 0);
}

function drawnRun(places, run, span) {
  const edge = ([ago]) => `${(60 * (1 - ago / span)).toFixed(2)},20`;
  const area = [edge(run[0]), ...places, edge(run.at(-1))];
  // A point that stands alone is a line to itself, which shows as a dot.
  return [shape("polygon", area), shape("polyline", [places[0], ...places])];
}

function shape(tag, places) {
  const element = document.createElementNS(SVG, tag);
  element.setAttribute("points", places.join(" "));
  return element;
}
