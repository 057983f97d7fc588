// Keeps a page of `hpsearch serve` up to date. The server sends the version of each part of the page; parts whose
// version changed are fetched and replaced. It also sends requests that steer, and shows values under the pointer.
"use strict";

const main = document.querySelector("main");
const link = document.getElementById("link");
const messages = document.getElementById("messages");
const tip = document.getElementById("tip");
const parts = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
const pending = new Map(); // number of a request -> its verb
const RETRY = 3000; // milliseconds
const NEAR = 30; // pixels

// Parts -----------------------------------------------------------------------------------------------------------

function address(part) {
  return part.dataset.source + (part.dataset.query === undefined ? "" : location.search);
}

async function refresh(part) {
  part.isStale = true;
  if (part.isLoading) return;
  part.isLoading = true;
  try {
    while (part.isStale) {
      part.isStale = false;
      const version = part.wanted;
      const answer = await fetch(address(part), { headers: { accept: "*/*" } });
      const text = await answer.text();
      if (!answer.ok) {
        if (answer.status === 401) return location.assign("/sign-in");
        if (answer.status === 404) {
          part.textContent = text;
          return;
        }
        throw new Error(text);
      }
      await untilIdle(part);
      replace(part, text);
      if (version !== undefined) part.dataset.version = version;
    }
  } catch (error) {
    setTimeout(() => refresh(part), RETRY);
  } finally {
    part.isLoading = false;
  }
}

// A picture isn't replaced while somebody reads values off it.
async function untilIdle(part) {
  while (part.querySelector("svg.chart:hover")) await new Promise((resume) => setTimeout(resume, 500));
}

// Replace a part; the focus, opened details and scrolled regions stay.
function replace(part, text) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  const opened = [...part.querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...part.querySelectorAll("[role=region]")].map((one) => [one.scrollLeft, one.scrollTop]);
  const log = part.querySelector("#log");
  const atEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  part.innerHTML = text;
  prepare(part);
  part.querySelectorAll("details").forEach((one, index) => (one.open = opened[index] ?? one.open));
  part.querySelectorAll("[role=region]").forEach((one, index) => {
    [one.scrollLeft, one.scrollTop] = scrolled[index] ?? [0, 0];
  });
  const end = part.querySelector("#log");
  if (end && atEnd) end.scrollTop = end.scrollHeight;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

// The table's links and filters change the address, but load only the table.
function show(query) {
  history.pushState(null, "", query ? `?${query}` : location.pathname);
  reload();
}

function reload() {
  for (const part of parts.values()) if (part.dataset.query !== undefined) refresh(part);
}

document.addEventListener("click", (event) => {
  const same = event.target.closest("a[data-same]");
  if (!same || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show(new URL(same.href).searchParams.toString());
});

document.addEventListener("submit", (event) => {
  if (event.target.dataset.same === undefined) return;
  event.preventDefault();
  const query = new URLSearchParams(location.search);
  for (const [name, value] of new FormData(event.target)) {
    if (name === "sort" || name === "order") continue;
    if (value) query.set(name, value);
    else query.delete(name);
  }
  query.delete("page");
  show(query.toString());
});

addEventListener("popstate", reload);

// Events ----------------------------------------------------------------------------------------------------------

let events = null;

function connect() {
  if (!main.dataset.live || events || document.hidden) return;
  events = new EventSource(main.dataset.live);
  events.onopen = () => connected("live");
  events.onmessage = (event) => take(JSON.parse(event.data));
  events.onerror = () => {
    connected("not connected");
    if (events && events.readyState === EventSource.CLOSED) {
      events = null;
      setTimeout(connect, RETRY);
    }
  };
}

function connected(text) {
  if (link.textContent !== text) link.textContent = text;
}

function take(news) {
  if (news.problem) return say(news.problem, true);
  for (const [name, version] of Object.entries(news.parts)) {
    const part = parts.get(name);
    if (!part || part.dataset.version === version) continue;
    if (part.wanted === version && part.isLoading) continue;
    part.wanted = version;
    refresh(part);
  }
  for (const [number, verb] of pending) {
    const answer = news.answers?.[number];
    if (answer) say(answer.text, answer.refused);
    else if (!news.runs) say(`The process ended before it could ${verb}.`, true);
    else continue;
    pending.delete(number);
  }
}

// A browser opens few connections to a server, so tabs that nobody sees give theirs back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden && events) {
    events.close();
    events = null;
  }
  connect();
});

// Steering --------------------------------------------------------------------------------------------------------

function say(text, isProblem) {
  const line = document.createElement("p");
  line.textContent = text;
  if (isProblem) line.className = "problem";
  messages.replaceChildren(line);
}

function ask(question) {
  const dialog = document.getElementById("question");
  document.getElementById("asked").textContent = question;
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.querySelector("form").onsubmit = (event) => resolve(event.submitter.value === "yes");
    dialog.oncancel = () => resolve(false);
  });
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.request) return;
  event.preventDefault();
  const fields = new URLSearchParams(new FormData(form));
  if (form.dataset.question && !(await ask(form.dataset.question))) return;
  const verb = fields.get("verb");
  try {
    const answer = await fetch(form.dataset.request, { method: "POST", body: fields });
    const isJson = (answer.headers.get("content-type") || "").startsWith("application/json");
    const told = isJson ? await answer.json() : { refused: await answer.text() };
    if (!answer.ok) return say(told.refused, true);
    pending.set(String(told.request), verb);
    say(`Asked the process to ${verb} ...`, false);
  } catch (error) {
    say(`The server can't be reached: ${error.message}`, true);
  }
});

// Values under the pointer ----------------------------------------------------------------------------------------

// Titles of shapes would show a second, slower tip.
function prepare(part) {
  for (const title of part.querySelectorAll("svg.chart > * > title")) {
    title.parentElement.dataset.tip = title.textContent;
    title.remove();
  }
}

function nearest(svg, x, y) {
  let found = null;
  for (const line of svg.querySelectorAll("[data-values]")) {
    line.known ??= line.dataset.values.split(" ").map((pair, index) => {
      const point = line.points[index];
      return { x: point.x, y: point.y, values: pair.split(":") };
    });
    for (const point of line.known) {
      const distance = Math.hypot(point.x - x, point.y - y);
      if (distance < (found?.distance ?? NEAR)) found = { line, point, distance };
    }
  }
  return found;
}

let hot = null;

function cool() {
  hot?.line.classList.remove("hot");
  hot?.mark?.remove();
  hot = null;
  tip.hidden = true;
}

function point(event) {
  const svg = event.target.closest?.("svg.chart");
  cool();
  if (!svg) return;
  const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const found = nearest(svg, place.x, place.y);
  const shape = event.target.closest("[data-tip]");
  const lines = [];
  if (found && (!shape || shape.dataset.values)) {
    const { line, point } = found;
    lines.push(`${svg.dataset.x} ${point.values[0]}: ${svg.dataset.y} ${point.values[1]}`);
    if (line.dataset.tip) lines.push(line.dataset.tip);
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    for (const [name, value] of [["cx", point.x], ["cy", point.y], ["r", 4], ["fill", line.getAttribute("stroke")]]) {
      mark.setAttribute(name, value);
    }
    svg.append(mark);
    line.classList.add("hot");
    hot = { line, mark };
  } else if (shape) {
    lines.push(shape.dataset.tip);
  } else {
    return;
  }
  tip.replaceChildren(...lines.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
  tip.hidden = false;
  const width = tip.offsetWidth;
  const height = tip.offsetHeight;
  const left = Math.min(event.clientX + 14, innerWidth - width - 8);
  const above = event.clientY + 18 + height > innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${above ? event.clientY - height - 12 : event.clientY + 18}px`;
}

document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
document.addEventListener("scroll", cool, { passive: true });

for (const part of parts.values()) prepare(part);
const log = document.getElementById("log");
if (log) log.scrollTop = log.scrollHeight;
connect();
