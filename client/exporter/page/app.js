"use strict";
// The status page: requests status.json every two seconds, and changes only
// nodes that differ, so that nothing flickers and the focus stays.

const POLL_MS = 2000;
const MAX_CHUNKS = 48;
const SVG = "http://www.w3.org/2000/svg";
const $ = id => document.getElementById(id);

let last = null;       // the last document of a broker that was up
let isPaused = false;
let timer = 0;

// --- formats ---------------------------------------------------------------

function size(bytes) {
	if (bytes === null)
		return "no limit";
	const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
	let unit = 0;
	while (bytes >= 1024 && unit < units.length - 1) {
		bytes /= 1024;
		unit++;
	}
	return (unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)) + " " + units[unit];
}

function count(n) {
	return n === null ? "no limit" : Math.round(n).toLocaleString("en");
}

function counted(n, noun) {
	return count(n) + " " + noun + (n === 1 ? "" : "s");
}

function rate(n) {
	return (n > 0 && n < 10 ? n.toFixed(1) : count(n)) + "/s";
}

function seconds(s) {
	if (!s)
		return "–";
	if (s < 1e-3)
		return (s * 1e6).toFixed(s < 1e-5 ? 1 : 0) + " µs";
	return s < 1 ? (s * 1e3).toFixed(s < 1e-2 ? 1 : 0) + " ms" : s.toFixed(1) + " s";
}

function age(ms) {
	const s = Math.floor(ms / 1000);
	if (s < 60)
		return s + " s";
	if (s < 3600)
		return Math.floor(s / 60) + " min";
	return s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
}

const percent = part => (part * 100).toFixed(part && part < 0.1 ? 1 : 0) + " %";

// --- the document ----------------------------------------------------------

function text(node, value) {
	value = String(value);
	if (node.textContent !== value)
		node.textContent = value;
}

function attribute(node, name, value) {
	value = String(value);
	if (node.getAttribute(name) !== value)
		node.setAttribute(name, value);
}

function element(name, parent, className) {
	const node = document.createElement(name);
	if (className)
		node.className = className;
	parent.append(node);
	return node;
}

function shape(name, parent) {
	const node = document.createElementNS(SVG, name);
	parent.append(node);
	return node;
}

// Returns `n` children of `parent`: makes missing ones by `make`, and removes
// surplus ones.
function children(parent, n, make) {
	while (parent.children.length > n)
		parent.lastElementChild.remove();
	while (parent.children.length < n)
		make(parent);
	return parent.children;
}

// --- tables ----------------------------------------------------------------

// column: [title, value(row), format, kind]. Rows are sorted by the value, and
// the format makes the text of a cell.
const tables = {
	tensors: {
		columns: [
			["name", t => t.name || "(no name)", null, "text"],
			["size", t => t.size, size],
			["state", stateOf, null, "state"],
			["holders", t => t.holders, count],
			["held by", holders, null, "text"],
			["owner", t => t.uid, String],
			["shape", t => t.shape.join("×") || "scalar", null, "text"],
			["where", t => t.device === "host" ? "host" : t.device, null, "text"],
			["age", t => t.age_ms, age],
		],
		sort: 1, descending: true, empty: "There are no tensors.",
	},
	limbo: {
		columns: [
			["tensor", t => t.name || "(no name)", null, "text"],
			["memory", t => t.block_size, size],
			["held by", holders, null, "text"],
			["owner", t => t.uid, String],
			["age", t => t.age_ms, age],
		],
		sort: 4, descending: true, empty: "Nothing is in limbo.",
	},
	comms: {
		columns: [
			["name", c => c.name, null, "text"],
			["state", c => c.state, null, "state"],
			["ranks", c => c.joined, (n, c) => n + "/" + c.ranks],
			["step", c => c.step, count],
			["in flight", c => c.in_flight, (n, c) => n + " (" + size(c.bytes_in_flight) + ")"],
			["waiting", c => c.limited, count],
			["shards", c => c.bytes, size],
			["note", c => c.note, null, "text"],
		],
		sort: 0, empty: "There are no communicators.",
	},
	channels: {
		columns: [
			["name", c => c.name, null, "text"],
			["role", c => c.role, null, "text"],
			["process", c => c.command, (command, c) => command + " (" + c.pid + ")", "text"],
			["waits for", waitsFor, null, "text"],
			["queued", c => c.queued, (n, c) => n + "/" + c.slots],
			["items", c => c.items, count],
			["mean rate", c => c.age_ms ? c.items * 1000 / c.age_ms : 0, rate],
			["mode", c => c.mode, null, "text"],
			["owner", c => c.uid, String],
		],
		sort: 0, empty: "There are no channels.",
	},
	sessions: {
		columns: [
			["process", s => s.command, (c, s) => c + " (" + s.pid + ")", "text"],
			["owner", s => s.uid, String],
			["memory made", s => s.bytes, size],
			["tensors held", s => s.tensors, count],
			["requests", s => s.requests, count],
			["waiting", s => s.waiting, count],
			["age", s => s.age_ms, age],
			["connected", s => s.connected ? "yes" : "no", null, "text"],
		],
		sort: 2, descending: true, empty: "There are no sessions.",
	},
	users: {
		columns: [
			["uid", u => u.uid, String],
			["memory", u => u.bytes, size],
			["limit", u => u.max_bytes ?? Infinity, (n, u) => size(u.max_bytes)],
			["on devices", u => u.device_bytes, size],
			["tensors", u => u.tensors, count],
			["sessions", u => u.sessions, count],
			["waiting", u => u.waiting, count],
		],
		sort: 1, descending: true, empty: "There are no users.",
	},
	requests: {
		columns: [
			["kind", r => r.kind, null, "text"],
			["count", r => r.count, count],
			["mean", r => r.sum_s / r.count, seconds],
			["median", r => r.median_s, seconds],
			["p99", r => r.p99_s, seconds],
			["in all", r => r.sum_s, seconds],
		],
		sort: 1, descending: true, empty: "There were no requests.",
	},
	loop: {
		columns: [
			["task", r => r.task, null, "text"],
			["time", r => r.s, seconds],
			["part", r => r.part, percent],
		],
		sort: 1, descending: true, empty: "",
	},
};

// The shards of a group have no name, so the state table says limbo, although
// the group keeps them.
function stateOf(tensor) {
	return tensor.collective && tensor.state === "limbo" ? "collective" : tensor.state;
}

function waitsFor(user) {
	if (user.ended)
		return "ended";
	if (!user.waiting)
		return "";
	return (user.role === "producer" ? "consumers, " : "producers, ") + seconds(user.wait_ms / 1000);
}

function holders(tensor) {
	const held = tensor.held_by || [];
	const names = held.map(h => h.command + " (" + h.pid + ")");
	if (tensor.holders > names.length && names.length)
		names.push("and " + (tensor.holders - names.length) + " more");
	return names.join(", ");
}

function compare(a, b) {
	return typeof a === "string" ? a.localeCompare(b) : a - b;
}

function makeHead(name, table, spec) {
	const row = element("tr", element("thead", table));
	element("tbody", table);
	spec.columns.forEach(([title, , , kind], i) => {
		const cell = element("th", row, kind ? "" : "num");
		cell.scope = "col";
		const button = element("button", cell);
		button.type = "button";
		button.textContent = title;
		button.addEventListener("click", () => {
			spec.descending = spec.sort === i ? !spec.descending : !kind;
			spec.sort = i;
			if (last)
				draw(last);
		});
	});
}

function drawTable(name, rows) {
	const table = $(name), spec = tables[name];
	if (!table.tHead)
		makeHead(name, table, spec);
	[...table.tHead.rows[0].cells].forEach((cell, i) => attribute(cell, "aria-sort",
		i !== spec.sort ? "none" : spec.descending ? "descending" : "ascending"));
	const value = spec.columns[spec.sort][1];
	rows = [...rows].sort((a, b) => compare(value(a), value(b)) * (spec.descending ? -1 : 1));
	const body = table.tBodies[0];
	children(body, rows.length, parent => {
		const row = element("tr", parent);
		spec.columns.forEach(([, , , kind]) => element("td", row, kind || "num"));
	});
	rows.forEach((row, i) => spec.columns.forEach(([, get, format, kind], k) => {
		const cell = body.rows[i].cells[k], of = get(row);
		text(cell, format ? format(of, row) : of);
		if (kind === "state" && cell.className !== "s-" + of)
			cell.className = "s-" + of;
		if (kind === "text")
			attribute(cell, "title", cell.textContent);
	}));
	// An empty box would still get the focus by the Tab key.
	table.parentElement.hidden = rows.length === 0;
}

function drawMore(name, shown, n, noun, verb) {
	const more = $(name + "-more");
	let said = "";
	if (n === 0)
		said = tables[name].empty;
	else if (n > shown && shown)
		said = "and " + counted(n - shown, "more " + noun) + ": fsdpctl " + verb + " lists them all";
	else if (n > shown)
		said = counted(n, noun) + " of other users";
	text(more, said);
	more.hidden = !said;
}

// --- tiles -----------------------------------------------------------------

function tiles(doc) {
	const c = doc.counters, now = doc.history[doc.history.length - 1] || {};
	const part = c.memory_max ? c.bytes_live / c.memory_max : 0;
	const list = [
		["Host memory", size(c.bytes_live), "of " + size(c.memory_max) + ", " + size(c.chunk_bytes) + " in chunks", part],
		["Tensors", count(c.slots), count(c.slots_limbo) + " in limbo, " + counted(c.bundles, "bundle")],
		["Sessions", count(c.sessions), count(c.peers) + " connected, " + counted(c.waiters, "request") + " waiting"],
		["Requests", rate(now.requests_per_s || 0), count(c.requests) + " since the start"],
		["p99 of requests", seconds(now.p99_s), "median " + seconds(now.median_s)],
		["Loop busy", percent(now.busy || 0), "longest iteration " + seconds(c.loop_longest_ns / 1e9)],
	];
	if (c.devices)
		list.splice(1, 0, ["Device memory", size(c.device_bytes_live), "on " + counted(c.devices, "device")]);
	if (c.comms)
		list.push(["Collectives", count(c.gathers_in_flight) + " in flight", count(c.comms_running) + " of " + counted(c.comms, "communicator") + " running"]);
	const nodes = children($("tiles"), list.length, parent => {
		const tile = element("div", parent, "tile");
		for (const name of ["span", "b", "span"])
			element(name, tile);
		element("i", element("div", tile, "meter"));
	});
	list.forEach(([title, value, more, filled], i) => {
		const [head, main, foot, meter] = nodes[i].children;
		text(head, title);
		text(main, value);
		text(foot, more);
		meter.hidden = filled === undefined;
		meter.classList.toggle("high", filled > 0.9);
		meter.firstChild.style.width = Math.min(100, (filled || 0) * 100) + "%";
	});
}

// --- charts ----------------------------------------------------------------

const charts = [
	["Requests", rate, "requests_per_s"],
	["Time of a request", seconds, "median_s", "p99_s", "median", "p99"],
	["Memory", size, "used_bytes", "device_used_bytes", "host", "devices"],
	["Loop busy", percent, "busy"],
	["Collectives", n => size(n) + "/s", "collective_bytes_per_s"],
	["Parked requests and limbo", count, "parked", "limbo", "parked", "limbo"],
];
const WIDTH = 300, HEIGHT = 70;

function makeChart(parent) {
	const chart = element("div", parent, "chart");
	const head = element("h3", chart);
	element("span", head);
	element("b", head);
	const svg = shape("svg", chart);
	svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT + 4}`);
	svg.setAttribute("preserveAspectRatio", "none");
	svg.setAttribute("role", "img");
	const grid = shape("path", svg);
	grid.setAttribute("class", "grid");
	grid.setAttribute("d", `M0 2H${WIDTH}M0 ${HEIGHT / 2 + 2}H${WIDTH}M0 ${HEIGHT + 2}H${WIDTH}`);
	for (const name of ["gap", "area", "a", "b"])
		shape("path", svg).setAttribute("class", name);
	const foot = element("p", chart);
	for (const name of ["", "key-a", "key-b", ""])
		element("span", foot, name);
}

// Returns a path through the samples. It has gaps where the broker was down.
function line(samples, key, x, max, closed) {
	let path = "", start = -1;
	const y = s => (HEIGHT + 2 - (s[key] || 0) / max * HEIGHT).toFixed(1);
	samples.forEach((s, i) => {
		if (!s.up)
			return;
		if (i === 0 || !samples[i - 1].up)
			start = i;
		path += (start === i ? "M" : "L") + x(i).toFixed(1) + " " + y(s);
		if (closed && (i === samples.length - 1 || !samples[i + 1].up))
			path += `V${HEIGHT + 2}H${x(start).toFixed(1)}Z`;
	});
	return path;
}

function drawCharts(doc) {
	const samples = doc.history;
	const nodes = children($("charts"), charts.length, makeChart);
	const end = samples.length ? samples[samples.length - 1].at_ms : 0;
	const span = Math.max(60000, samples.length ? end - samples[0].at_ms : 0);
	const x = i => WIDTH - (end - samples[i].at_ms) / span * WIDTH;
	const step = doc.step_ms / span * WIDTH;
	const gaps = samples.map((s, i) => s.up ? "" : `M${(x(i) - step).toFixed(1)} 2h${step.toFixed(1)}v${HEIGHT}h${-step.toFixed(1)}z`).join("");
	charts.forEach(([title, format, a, b, nameA, nameB], i) => {
		const [head, svg, foot] = nodes[i].children;
		const values = samples.flatMap(s => s.up ? [s[a] || 0, b ? s[b] || 0 : 0] : []);
		const top = Math.max(0, ...values), max = top || 1;
		const now = samples.length ? samples[samples.length - 1] : {};
		text(head.children[0], title);
		text(head.children[1], format(now[a] || 0) + (b ? " · " + format(now[b] || 0) : ""));
		attribute(svg, "aria-label", `${title}: now ${head.children[1].textContent}, at most ${format(top)}`);
		attribute(svg.children[1], "d", gaps);
		attribute(svg.children[2], "d", line(samples, a, x, max, true));
		attribute(svg.children[3], "d", line(samples, a, x, max));
		attribute(svg.children[4], "d", b ? line(samples, b, x, max) : "");
		text(foot.children[0], "−" + age(span));
		text(foot.children[1], nameA ? nameA : "");
		text(foot.children[2], nameB ? nameB : "");
		text(foot.children[3], "max " + format(top));
	});
}

// --- the memory map --------------------------------------------------------

let owners = [];

function classOf(tensor) {
	if ($("colour").value === "state")
		return stateOf(tensor);
	return "k" + owners.indexOf(tensor.uid) % 8;
}

function describe(t) {
	const parts = [t.name || "a tensor without a name", size(t.size) + " at " + t.offset.toLocaleString("en"),
		stateOf(t), "uid " + t.uid, counted(t.holders, "holder")];
	if (holders(t))
		parts.push("held by " + holders(t));
	if (t.tainted)
		parts.push("tainted");
	return parts.join(" · ");
}

function drawLegend(doc) {
	const isState = $("colour").value === "state";
	const list = isState ? ["published", "writing", "limbo", "collective"].map(name => [name, name])
		: owners.slice(0, 8).map((uid, i) => ["k" + i, "uid " + uid]);
	if (doc.tensors.n > doc.tensors.items.length)
		list.push(["unknown", "not listed"]);
	list.push(["free", "free"]);
	const nodes = children($("legend"), list.length, parent => {
		const item = element("li", parent);
		const svg = shape("svg", item);
		svg.setAttribute("aria-hidden", "true");
		const rect = shape("rect", svg);
		rect.setAttribute("width", 11);
		rect.setAttribute("height", 11);
		rect.setAttribute("rx", 2);
		element("span", item);
	});
	list.forEach(([name, label], i) => {
		attribute(nodes[i].firstChild.firstChild, "class", name);
		text(nodes[i].lastChild, label);
	});
}

function makeChunk(parent) {
	const row = element("div", parent, "chunk");
	row.tabIndex = 0;
	row.setAttribute("role", "group");
	const label = element("div", row);
	element("b", label);
	element("span", label);
	const svg = shape("svg", row);
	svg.setAttribute("viewBox", "0 0 1000 24");
	svg.setAttribute("preserveAspectRatio", "none");
	svg.setAttribute("aria-hidden", "true");
	svg.addEventListener("pointerover", event => select(row, [...svg.children].indexOf(event.target)));
	row.addEventListener("focus", () => select(row, -1));
	row.addEventListener("keydown", event => {
		const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
		if (!by)
			return;
		event.preventDefault();
		const n = row.rects.length, at = (row.selected ?? -1) + by;
		select(row, Math.max(0, Math.min(n - 1, at)));
	});
}

function select(row, i) {
	for (const on of document.querySelectorAll(".chunk rect.on"))
		on.classList.remove("on");
	row.selected = i;
	const rect = row.rects && row.rects[i];
	if (rect)
		row.lastChild.children[i].classList.add("on");
	text($("detail"), rect ? rect.said : row.said || "");
}

function rectsOf(chunk, tensors, isComplete) {
	const rects = tensors.map(t => ({x: t.offset, w: Math.max(t.size, 1), c: classOf(t), said: describe(t)}));
	const listed = tensors.reduce((sum, t) => sum + t.size, 0);
	// The size of tensors that are not listed is shown after the last one.
	if (!isComplete && chunk.used > listed) {
		const behind = tensors.reduce((end, t) => Math.max(end, t.offset + t.size), 0);
		const w = Math.min(chunk.used - listed, chunk.size - behind);
		if (w > 0)
			rects.push({x: behind, w, c: "unknown", said: size(chunk.used - listed) + " in tensors that are not listed here"});
	}
	if (chunk.reserved)
		rects.push({x: chunk.size - chunk.reserved, w: chunk.reserved, c: "reserved", said: size(chunk.reserved) + " reserved, without pages yet"});
	return rects;
}

function drawMap(doc) {
	const by = new Map();
	for (const t of doc.tensors.items) {
		if (!by.has(t.chunk))
			by.set(t.chunk, []);
		by.get(t.chunk).push(t);
	}
	owners = [...new Set(doc.chunks.map(c => c.uid))].sort((a, b) => a - b);
	const isComplete = doc.tensors.n <= doc.tensors.items.length;
	const chunks = [...doc.chunks].sort((a, b) => b.used - a.used || a.chunk - b.chunk);
	const shown = chunks.slice(0, MAX_CHUNKS);
	const rows = children($("map"), shown.length, makeChunk);
	shown.forEach((chunk, i) => {
		const row = rows[i], [label, svg] = row.children;
		const kind = chunk.shared !== "no" ? ", " + chunk.shared : chunk.bundle ? ", bundle" : "";
		const where = chunk.device === "host" ? "" : " " + chunk.device;
		text(label.children[0], size(chunk.used));
		text(label.children[1], ` of ${size(chunk.size)}, uid ${chunk.uid} ${chunk.mode.toString(8)}${kind}${where}`);
		row.said = `Chunk ${chunk.chunk}: ${label.textContent}, ${counted(chunk.blocks, "block")}, ${chunk.sealed ? "sealed" : "not sealed"}`;
		attribute(row, "aria-label", row.said);
		const list = (by.get(chunk.chunk) || []).sort((a, b) => a.offset - b.offset);
		row.rects = rectsOf(chunk, list, isComplete);
		const nodes = children(svg, row.rects.length, parent => shape("rect", parent).setAttribute("height", 24));
		row.rects.forEach((rect, k) => {
			const width = Math.max(0.8, rect.w / chunk.size * 1000);
			const isOn = document.activeElement === row && row.selected === k;
			attribute(nodes[k], "x", (rect.x / chunk.size * 1000).toFixed(3));
			attribute(nodes[k], "width", width.toFixed(3));
			// Thin blocks have no gap to the next one, which would hide them.
			attribute(nodes[k], "class", rect.c + (width < 4 ? " thin" : "") + (isOn ? " on" : ""));
		});
	});
	// The counter includes chunks of other users, which may not be listed.
	text($("map-empty"), doc.counters.chunks > 0 ?
		counted(doc.counters.chunks, "chunk") + " of other users: listed if fsdp-exporter has the group admin_group (man fsdp-exporter)" :
		"There is no memory yet: the first tensor makes a chunk.");
	$("map-empty").hidden = shown.length > 0;
	text($("map-more"), "and " + counted(chunks.length - shown.length, "more chunk"));
	$("map-more").hidden = chunks.length <= shown.length;
	drawLegend(doc);
}

// --- all of it -------------------------------------------------------------

function matches(tensor, words) {
	const all = [tensor.name, stateOf(tensor), "uid " + tensor.uid, holders(tensor)].join(" ").toLowerCase();
	return words.every(word => all.includes(word));
}

function loopRows(c) {
	const names = ["requests", "reruns", "chores", "timers", "closes", "collectives", "other", "waiting"];
	const rows = names.map(task => ({task, s: (c[`loop_${task}_ns`] || 0) / 1e9}));
	const sum = rows.reduce((all, row) => all + row.s, 0) || 1;
	rows.forEach(row => row.part = row.s / sum);
	return rows;
}

function drawNotes(doc) {
	const lines = doc.note.split("\n").filter(line => line);
	if (!doc.counters.supervised)
		lines.unshift("The broker is not supervised: if it crashes, all tensors are lost.");
	const nodes = children($("notes"), lines.length, parent => element("li", parent));
	lines.forEach((said, i) => text(nodes[i], said));
	$("notes").hidden = lines.length === 0;
}

function draw(doc) {
	const c = doc.counters;
	text($("about"), `${location.host} · pid ${c.pid} · up ${age(c.uptime_ms)} · ${size(c.rss)} of its own`);
	drawNotes(doc);
	tiles(doc);
	drawCharts(doc);
	drawMap(doc);
	const words = $("filter").value.toLowerCase().split(/\s+/).filter(word => word);
	const found = doc.tensors.items.filter(tensor => matches(tensor, words));
	drawTable("tensors", found);
	if (words.length) {
		text($("tensors-more"), `${count(found.length)} of ${counted(doc.tensors.items.length, "listed tensor")}` +
			(doc.tensors.n > doc.tensors.items.length ? `; there are ${count(doc.tensors.n)} in all` : ""));
		$("tensors-more").hidden = false;
	} else {
		drawMore("tensors", found.length, doc.tensors.n, "tensor", "ls");
	}
	drawTable("limbo", doc.limbo.items);
	drawMore("limbo", doc.limbo.items.length, doc.limbo.n, "tensor", "limbo");
	drawTable("sessions", doc.sessions.items);
	drawMore("sessions", doc.sessions.items.length, doc.sessions.n, "session", "clients");
	drawTable("channels", doc.channels.items);
	drawMore("channels", doc.channels.items.length, doc.channels.n, "user", "channels");
	drawTable("comms", doc.communicators);
	drawMore("comms", doc.communicators.length, doc.communicators.length);
	drawTable("users", doc.users);
	drawMore("users", doc.users.length, doc.users.length);
	drawTable("requests", doc.requests);
	drawMore("requests", doc.requests.length, doc.requests.length);
	drawTable("loop", loopRows(c));
}

function setState(name, said, alert) {
	const state = $("state");
	text(state, said);
	if (state.className !== "pill " + name)
		state.className = "pill " + name;
	document.body.classList.toggle("stale", name === "away");
	$("alert").hidden = !alert;
	text($("alert"), alert || "");
	document.title = (name === "away" ? "away – " : "") + "fsdpd";
}

async function poll() {
	try {
		const reply = await fetch("status.json", {cache: "no-store", signal: AbortSignal.timeout(8000)});
		if (!reply.ok)
			throw new Error("HTTP " + reply.status);
		const doc = await reply.json();
		if (doc.up) {
			last = doc;
			setState("up", "up");
			draw(doc);
		} else {
			setState("away", "broker away", "The broker does not answer: " + doc.error +
				(last ? ". What is shown below is from " + new Date(last.at_ms).toLocaleTimeString() + "." : "."));
			if (doc.history.length)
				drawCharts(doc);
		}
		text($("updated"), "updated " + new Date(doc.at_ms).toLocaleTimeString());
	} catch (error) {
		setState("away", "no exporter", "fsdp-exporter does not answer (" + error.message + "); this page asks it again every two seconds.");
	}
	plan();
}

function plan() {
	clearTimeout(timer);
	if (!isPaused && !document.hidden)
		timer = setTimeout(poll, POLL_MS);
}

$("pause").addEventListener("click", () => {
	isPaused = !isPaused;
	$("pause").textContent = isPaused ? "Go on" : "Pause";
	isPaused ? clearTimeout(timer) : poll();
});
$("filter").addEventListener("input", () => last && draw(last));
$("colour").addEventListener("change", () => last && draw(last));
document.addEventListener("visibilitychange", () => document.hidden || isPaused || poll());
poll();
