// The live page. What the process says is only ever put into textContent: a topic may have any name.
"use strict";

const PERIOD = 500; // milliseconds between two looks
const KEPT = 60; // points of a line
const $ = (id) => document.getElementById(id);
const history_ = { records: [], bytes: [], latency: [] };
let token = readToken();
let paused = false;
let chosen = null;
let announced = "";
let announcedAt = 0;
let timer = 0;

function readToken() {
  // Behind the #, which browsers keep to themselves.
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

async function ask(path) {
  const headers = { "Penstock-Viewer": "page" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (answer.status === 401) throw new Error("401");
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

async function look() {
  clearTimeout(timer);
  try {
    show(await ask("api/state"));
    say("");
  } catch (error) {
    if (error.message === "401") {
      $("token-form").hidden = false;
      $("main").hidden = true;
      say(token ? "The token is wrong." : "");
      return;
    }
    say("The process does not answer any more. It may have ended; this page goes on asking.");
  }
  schedule();
}

function schedule() {
  clearTimeout(timer);
  if (!paused && !document.hidden) timer = setTimeout(look, PERIOD);
}

function say(text) {
  if ($("trouble").textContent !== text) $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

// ---- small helpers

function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keep as many children as there are entries, and fill each; elements stay, so that focus and reading do.
function list(parent, entries, create, fill) {
  while (parent.children.length > entries.length) parent.lastChild.remove();
  entries.forEach((entry, at) => {
    if (at >= parent.children.length) parent.append(create());
    fill(parent.children[at], entry);
  });
}

function number(value) {
  return Math.round(value).toLocaleString("en");
}

function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1024;
  }
}

function ms(value) {
  return value < 1000 ? `${value < 10 ? value.toFixed(1) : Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

function percent(value) {
  return `${Math.round(100 * value)} %`;
}

// ---- the page

function show(state) {
  $("token-form").hidden = true;
  $("main").hidden = false;
  const { process, producers } = state;
  put($("process"), `${process.program}, process ${process.pid}, penstock ${process.version}`);
  const one = choose(producers);
  $("main").hidden = !one;
  if (!one) {
    say("This process has no producer now.");
    return;
  }
  document.title = `${one.client_id} - Penstock glass box`;
  showAdvice(one.advice);
  showNumbers(one);
  showLanes(one);
  showBrokers(one.brokers);
  showMemory(one.memory);
  showIo(one.io);
  showLeaving(one.leaving);
  showTimes(one.times);
  showFollowing(one);
  showEvents(state.events);
  showOptions(one);
}

function choose(producers) {
  const select = $("producer");
  if (!producers.some((one) => one.id === chosen)) {
    chosen = producers.length ? producers[0].id : null;
    Object.values(history_).forEach((line) => line.splice(0));
  }
  list(select, producers, () => make("option"), (option, one) => {
    if (option.value !== String(one.id)) option.value = String(one.id);
    put(option, one.client_id);
  });
  if (chosen !== null && document.activeElement !== select) select.value = String(chosen);
  return producers.find((one) => one.id === chosen);
}

function showAdvice(advice) {
  list($("advice"), advice, () => make("li"), (item, said) => {
    if (item.className !== said.tone) item.className = said.tone;
    put(item, said.text);
  });
  // Read out only what is news: not each number that changes.
  const kind = advice[0].text.replace(/[\d.,]+/g, "");
  const now = Date.now();
  if (kind !== announced && now - announcedAt > 3000) {
    announced = kind;
    announcedAt = now;
    put($("announcer"), advice[0].text);
  }
}

function showNumbers(one) {
  const latency = one.brokers.filter((broker) => broker.latency_ms !== null);
  const answers = latency.reduce((sum, broker) => sum + broker.answers, 0);
  const mean = answers ? latency.reduce((sum, broker) => sum + broker.latency_ms * broker.answers, 0) / answers : 0;
  remember("records", one.rates.records);
  remember("bytes", one.rates.bytes);
  remember("latency", mean);
  const entries = [
    ["records a second", number(one.rates.records), "records"],
    ["sent a second", bytes(one.rates.bytes), "bytes"],
    ["answer after", answers ? ms(mean) : "-", "latency"],
    ["no outcome yet", number(one.counts.waiting_records)],
    ["records sent", number(one.totals.records)],
    ["sent again", number(one.totals.retries)],
    ["failed", number(one.totals.errors)],
  ];
  if (one.transaction) entries.push(["transaction", one.transaction.toLowerCase().replaceAll("_", " ")]);
  list($("numbers"), entries, () => {
    const group = make("div");
    const value = make("dd");
    value.append(make("b"), spark());
    group.append(make("dt"), value);
    return group;
  }, (group, [name, value, line]) => {
    put(group.querySelector("dt"), name);
    put(group.querySelector("b"), value);
    draw(group.querySelector("svg"), line ? history_[line] : []);
  });
}

function remember(line, value) {
  history_[line].push(value);
  if (history_[line].length > KEPT) history_[line].shift();
}

function spark() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", `0 0 ${KEPT} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  return svg;
}

function draw(svg, values) {
  svg.toggleAttribute("hidden", !values.length);
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, at) => `${KEPT - values.length + at},${(19 - 18 * value / most).toFixed(1)}`);
  svg.firstChild.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
}

function showLanes(one) {
  const { counts, lanes } = one;
  const left = counts.left_out ? ` The ${number(lanes.length)} that matter most are shown.` : "";
  put($("lanes-text"), `${number(counts.partitions)} partitions of ${number(counts.topics)} topic${counts.topics === 1 ? "" : "s"}, ${number(counts.busy)} busy: ` +
    `${number(counts.open)} batches open, ${number(counts.queued)} queued, ${number(counts.in_flight)} in flight, ` +
    `${number(counts.retries)} to be sent again.${left}`);
  list($("lanes"), lanes, newLane, fillLane);
}

function newLane() {
  const row = make("tr");
  const name = make("th");
  name.scope = "row";
  const open = make("td");
  const fill = make("div", "fill");
  fill.append(make("i"));
  open.append(fill, make("span", "fill-text"));
  const queued = make("td", "waits");
  const flight = make("td", "flight");
  for (const cell of [queued, flight]) cell.append(make("span", "chips"), make("span"));
  row.append(name, open, queued, flight, make("td", "again"), make("td"));
  return row;
}

function fillLane(row, lane) {
  const [name, open, queued, flight, again, leader] = row.children;
  row.className = lane.text === "idle" ? "idle" : "";
  put(name, `${lane.topic} ${lane.partition}`);
  const isOpen = lane.open_fill !== null;
  open.firstChild.firstChild.style.width = percent(isOpen ? lane.open_fill : 0).replace(" ", "");
  put(open.lastChild, isOpen
    ? `${percent(lane.open_fill)} full, ${number(lane.open_records)} record${lane.open_records === 1 ? "" : "s"}${lane.linger_left_ms ? `, lingers ${ms(lane.linger_left_ms)}` : ""}`
    : "no open batch");
  chips(queued, lane.queued, "");
  chips(flight, lane.in_flight, lane.in_flight ? ` for ${ms(lane.in_flight_ms)}` : "");
  put(again, lane.retries
    ? `${number(lane.retries)}, attempt ${lane.attempt}${lane.retry_in_ms ? ` in ${ms(lane.retry_in_ms)}` : ""}: ${lane.cause}` : "");
  put(leader, lane.leader === null ? "" : `broker ${lane.leader}`);
}

function chips(cell, count, rest) {
  list(cell.firstChild, Array(Math.min(count, 8)).fill(0), () => make("i"), () => {});
  put(cell.lastChild, count ? `${number(count)}${rest}` : "");
}

function showBrokers(brokers) {
  list($("brokers"), brokers, () => {
    const item = make("li");
    item.append(make("span", "state"), make("b"), make("p"), make("p", "soft"), make("p", "soft"));
    return item;
  }, (item, broker) => {
    item.className = broker.tone;
    const [state, name, text, figures, past] = item.children;
    put(state, broker.state);
    put(name, `${broker.id < 0 ? "bootstrap server" : `broker ${broker.id} at`} ${broker.address}`);
    put(text, broker.tone === "good" ? "" : broker.text);
    put(figures, `${number(broker.in_flight)} in flight, ${number(broker.responses)} answers` +
      (broker.latency_ms === null ? "" : `, ${ms(broker.latency_ms)} on average`));
    put(past, broker.past);
  });
}

function showMemory(memory) {
  const used = memory.total - memory.free;
  const share = memory.total ? used / memory.total : 0;
  const bar = $("memory-bar");
  bar.className = `bar${memory.waiting ? " short" : ""}`;
  bar.firstChild.style.width = `${(100 * share).toFixed(1)}%`;
  bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
  const text = `${bytes(used)} of ${bytes(memory.total)} in use (buffer.memory).`;
  bar.setAttribute("aria-valuetext", text);
  put($("memory-text"), memory.waiting ? `${text} ${number(memory.waiting)} wait for memory:` : `${text} Nobody waits.`);
  list($("waits"), memory.waits, () => make("li"), (item, wait) => {
    put(item, `${wait.thread} waits ${ms(1000 * wait.seconds)} for ${bytes(wait.bytes)}, of which it has ${bytes(wait.gathered)}`);
  });
}

const ACTIVITIES = ["waiting", "sealing", "writing", "reading", "callbacks", "other"];

function showIo(io) {
  const shares = ACTIVITIES.map((name) => [name, io.shares[name] || 0]);
  list($("io-bar"), shares, () => make("i"), (part, [name, share]) => {
    part.className = `a-${name}`;
    part.style.width = `${(100 * share).toFixed(1)}%`;
  });
  $("io-bar").setAttribute("aria-label", shares.map(([name, share]) => `${name} ${percent(share)}`).join(", "));
  list($("io-legend"), shares, () => {
    const item = make("li");
    item.append(make("i"), make("span"));
    return item;
  }, (item, [name, share]) => {
    item.firstChild.className = `a-${name}`;
    put(item.lastChild, `${name} ${percent(share)}`);
  });
  put($("io-text"), io.for_s >= 0.5 && io.now !== "waiting" ? `Now: ${io.now}, for ${io.for_s.toFixed(1)} s${io.where ? `, in ${io.where}` : ""}.` : "");
}

function showLeaving(leaving) {
  list($("leaving"), leaving, () => {
    const item = make("li");
    const bar = make("div", "bar");
    bar.setAttribute("aria-hidden", "true");
    bar.append(make("i"));
    item.append(make("span"), bar, make("span"));
    return item;
  }, (item, entry) => {
    put(item.firstChild, entry.reason);
    item.children[1].firstChild.style.width = `${(100 * entry.share).toFixed(1)}%`;
    put(item.lastChild, `${percent(entry.share)}, filled to ${percent(entry.fill)}`);
  });
}

const PLACES = {
  "record-queue-time": "in the queue",
  "request-latency": "for the broker's answer",
  "record-retry-time": "in retries",
  "callback-time": "in callbacks",
  "record-delivery-time": "in all",
};

function showTimes(times) {
  const rows = Object.keys(PLACES).filter((name) => times[name]).map((name) => [PLACES[name], times[name]]);
  list($("times"), rows, () => {
    const row = make("tr");
    const name = make("th");
    name.scope = "row";
    row.append(name, make("td"), make("td"), make("td"));
    return row;
  }, (row, [name, found]) => {
    put(row.children[0], name);
    ["p50", "p95", "p99"].forEach((which, at) => put(row.children[at + 1], found[which] < 10 ? found[which].toFixed(1) : number(found[which])));
  });
}

function showFollowing(one) {
  const topics = [...new Set(one.lanes.map((lane) => lane.topic))].slice(0, 50);
  list($("topics"), topics, () => make("option"), (option, topic) => {
    if (option.value !== topic) option.value = topic;
  });
  const following = one.following;
  $("follow-stop").hidden = !(following && following.waiting);
  if (!following) return;
  const what = following.key === null ? `a record of ${following.topic}` : `a record of ${following.topic} with that key`;
  put($("follow-text"), following.waiting ? `Waits for ${what}.`
    : following.steps.length ? `The way of a record of ${following.topic}${following.done ? "" : ", until now"}:` : `No such record came.`);
  list($("follow-steps"), following.steps, () => {
    const item = make("li");
    item.append(make("b"), make("span"));
    return item;
  }, (item, step) => {
    item.className = step.what;
    put(item.firstChild, ms(step.at_ms));
    put(item.lastChild, step.text);
  });
}

function showEvents(events) {
  list($("events"), events.length ? events : [{ at_ms: 0, tone: "quiet", text: "Nothing has happened yet." }], () => {
    const item = make("li");
    item.append(make("time"), make("span"));
    return item;
  }, (item, event) => {
    item.className = event.tone;
    put(item.firstChild, event.at_ms ? new Date(event.at_ms).toLocaleTimeString("en-GB") : "");
    put(item.lastChild, event.text);
  });
}

function showOptions(one) {
  const entries = [["bootstrap.servers", one.servers], ...Object.entries(one.options)].flat();
  const list_ = $("options");
  if (list_.children.length !== entries.length) {
    list_.replaceChildren(...entries.map((_, at) => make(at % 2 ? "dd" : "dt")));
  }
  entries.forEach((entry, at) => put(list_.children[at], String(entry)));
}

// ---- controls

$("producer").addEventListener("change", (event) => {
  chosen = Number(event.target.value);
  Object.values(history_).forEach((line) => line.splice(0));
  look();
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  put($("pause"), paused ? "Go on" : "Pause");
  if (!paused) look();
});
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  sessionStorage.setItem("token", token);
  look();
});
$("follow-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = new URLSearchParams({ producer: String(chosen), topic: $("follow-topic").value });
  if ($("follow-key").value) given.set("key", $("follow-key").value);
  $("follow-steps").replaceChildren();
  show(await ask(`api/follow?${given}`));
});
$("follow-stop").addEventListener("click", async () => {
  show(await ask(`api/follow?${new URLSearchParams({ producer: String(chosen) })}`));
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!paused) look();
});
look();
