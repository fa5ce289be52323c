// The explorer: renders into an element, and asks its host for all numbers. Nothing is computed here.

import { Controls, TimeBar } from "./controls.js";
import { html, set } from "./drawing.js";
import { addSequence, addToken, aside, choose, flipLabel, placed, randomStart, removeSequence, removeToken } from "./edits.js";
import { seenInPlane } from "./geometry.js";
import { frozenHost, serverHost, widgetHost } from "./hosts.js";
import { legend } from "./legend.js";
import { apartChart, attentionPanels, basinMap, lossChart, marginChart, numbersTable, panel, remarks } from "./panels.js";
import { directionsOf, rowsOf } from "./marks.js";
import { Plane } from "./plane.js";
import { History, addressOf, stateOf, stateOfAddress } from "./state.js";
import { bytesOf, download, downloadPicture, showCode } from "./takeaway.js";
import { Tools } from "./tools.js";

const BASINS_AFTER = 350; // milliseconds of rest
const SLOW = 700; // milliseconds after which the page says that it waits
const OWN = { id: "own", title: "your own tokens", hint: "Drag tokens and queries; what the plane does not see of them stays as it is. The heat map has attention over all tokens.", view: { attention: "heat" } };

class Explorer {
  constructor(root, host) {
    this.root = root;
    this.host = host;
    this.frozen = host.kind === "frozen";
    this.history = new History();
    this.seq = 0;
    this.sent = new Map(); // by number, what the answer will be about
    this.waiting = null; // the number whose first answer is awaited
    this.shown = { solved: -1, trained: -1 };
    this.moved = [0, 0];
    this.#build();
    host.onMessage = (message) => this.#received(message);
    host.onStatus = (status) => this.#status(status);
    host.start();
  }

  #build() {
    this.root.classList.add("attnlab-explorer");
    const dark = globalThis.matchMedia?.("(prefers-color-scheme: dark)").matches;
    this.root.dataset.theme = this.root.dataset.theme ?? (dark ? "dark" : "light");
    this.controls = new Controls(this.#actions());
    this.plane = new Plane(this.#gestures(), (key) => !this.frozen || key === this.host.draggable);
    this.time = new TimeBar((at) => this.#change((state) => (state.view.at = at), { ask: false, remember: false }));
    this.tools = new Tools((name, value) => this.#view(name, value));
    this.numbers = panel("numbers", "Certificates and numbers");
    this.attention = panel("attention", "Attention", ...this.tools.ofAttention);
    this.loss = panel("loss", "Loss above its infimum");
    this.margin = panel("margin", "Margin over norm (dotted: the most)");
    this.apart = panel("apart", "1 − cos to max-margin (dotted: other norm)");
    this.basins = panel("basins", "Which start ends where", ...(this.frozen ? [] : this.tools.ofBasins));
    for (const one of [this.numbers, this.attention]) one.element.classList.add("wide");
    this.attention.body.classList.add("pictures");
    const panels = html("div", { class: "panels" }, ...[this.numbers, this.attention, this.loss, this.margin, this.apart, this.basins].map((one) => one.element));
    this.planeBox = html("div", {}, this.plane.element);
    this.code = html("div", { class: "code" });
    const left = html("div", { class: "left" }, this.planeBox, this.time.element, legend(), this.controls.editing, this.code);
    this.root.replaceChildren(this.controls.element, html("main", {}, left, panels));
    // Widths are asked for only when they change: asking makes the browser lay everything out.
    new ResizeObserver(() => this.#measure() || this.draw()).observe(this.root);
    this.root.addEventListener("keydown", (event) => this.#pressed(event));
    if (this.host.usesAddress) addEventListener("hashchange", () => this.#takeAddress());
  }

  #actions() {
    return {
      preset: (id) => this.#open(id),
      setting: (name, value) => this.#change((state) => (state.scene[name] = value)),
      view: (name, value) => this.#view(name, value),
      undo: () => this.#restore(this.history.undo(this.#kept())),
      redo: () => this.#restore(this.history.redo(this.#kept())),
      fit: () => this.#refit(),
      theme: () => this.#turnTheme(),
      axis: (k, value) => this.#axis(k, value),
      addSequence: () => this.#edit((scene) => addSequence(scene, this.mostSequences)),
      removeSequence: (i) => this.#edit((scene) => removeSequence(scene, i)),
      flip: (i) => this.#edit((scene) => flipLabel(scene, i)),
      addToken: (i) => this.#edit((scene) => addToken(scene, i, aside(scene.x[i].length, this.plane.frame))),
      removeToken: (i) => this.#edit((scene) => removeToken(scene, i, scene.x[i].length - 1)),
      randomStart: () => this.#edit(randomStart),
      take: (what) => this.#take(what),
    };
  }

  #gestures() {
    return {
      begin: (key) => {
        this.history.remember(this.#kept());
        this.startBefore = JSON.parse(JSON.stringify(this.state.scene.start));
        if (key.startsWith("token")) this.moved = key.split("-").slice(1).map(Number);
      },
      move: (key, place, time) => {
        this.#place(key, place);
        this.changed(time);
      },
      end: () => {
        if (this.state.scene.pull) {
          this.settling = true;
          this.changed();
        } else this.#keepAddress();
        this.draw();
      },
      press: (key, action, place, time) => this.#act(key, action, place, time),
      focus: (key) => {
        const [kind, a] = key.split("-");
        const row = kind === "token" ? rowsOf(this.state.scene).findIndex((one) => one.sequence === Number(a)) : Number(a);
        if (kind !== "head" && row >= 0 && row !== this.state.view.row && !this.plane.drag) this.#view("row", row);
      },
    };
  }

  // What changes the state.

  #kept() {
    const { pull, ...scene } = this.state.scene;
    return { preset: this.state.preset, scene, view: { ...this.state.view, at: null } };
  }

  #change(edit, { ask = true, remember = true } = {}) {
    if (!this.state) return;
    if (remember) this.history.remember(this.#kept());
    edit(this.state);
    if (ask) this.changed();
    else this.draw();
    this.#keepAddress();
  }

  #view(name, value) {
    this.#change((state) => (state.view[name] = value), { ask: false, remember: false });
    if (name.startsWith("basin") || ["shape", "radius", "row"].includes(name)) this.#askBasins();
  }

  #open(id) {
    const preset = this.presets.find((one) => one.id === id) ?? this.presets[0];
    this.#change(() => (this.state = stateOf(preset)));
    this.#refit();
  }

  #restore(state) {
    if (!state) return;
    this.state = state;
    this.changed();
    this.#keepAddress();
  }

  #refit() {
    this.plane.fit(this.state.scene);
    this.draw();
  }

  #turnTheme() {
    this.root.dataset.theme = this.root.dataset.theme === "dark" ? "light" : "dark";
    this.draw();
  }

  /** The plane is that of the two principal coordinates, or of two others: its rows stay orthonormal. */
  #axis(k, value) {
    const principal = this.#preset().scene.plane;
    const unit = (at) => this.state.scene.v.map((_, j) => Number(j === at));
    this.#change(({ scene }) => {
      if (value === "principal") {
        scene.plane = JSON.parse(JSON.stringify(principal));
        return;
      }
      const wanted = Number(value);
      const other = scene.plane[1 - k].filter((entry) => entry !== 0).length === 1 ? scene.plane[1 - k].indexOf(1) : -1;
      const kept = other >= 0 && other !== wanted ? other : Number(wanted === 0);
      scene.plane[k] = unit(wanted);
      scene.plane[1 - k] = unit(kept);
    });
    this.#refit();
  }

  #place(key, place) {
    const { scene } = this.state;
    if (key.startsWith("start")) scene.start = this.startBefore;
    placed(scene, key, place, this.frozen ? this.host.snapped : (point) => point);
  }

  #act(key, action, place, time) {
    const { scene } = this.state;
    const [kind, a, b] = (key ?? "").split("-");
    if (action === "nudge") {
      this.history.remember(this.#kept());
      if (kind === "token") this.moved = [Number(a), Number(b)];
      this.startBefore = JSON.parse(JSON.stringify(scene.start));
      const now = kind === "start" ? this.answers.trained?.runs.W?.path?.[0]?.[a] ?? [0, 0] : seenInPlane(kind === "token" ? scene.x[a][b] : kind === "head" ? scene.v : rowsOf(scene)[a].z, scene.plane);
      this.#place(key, now.map((value, k) => value + place[k]));
      if (scene.pull) this.settling = true;
      this.changed(time);
      this.#keepAddress();
      return;
    }
    const sequence = kind === "token" ? Number(a) : (rowsOf(scene)[kind === "query" || kind === "start" ? a : this.state.view.row]?.sequence ?? 0);
    if (action === "remove" && kind === "token") this.#edit(() => removeToken(scene, sequence, Number(b)));
    else if (action === "label" && kind !== "head") this.#edit(() => flipLabel(scene, sequence));
    else if (action === "choose" && kind === "token") this.#choose(sequence, Number(b));
    else if (action === "add") this.#edit(() => addToken(scene, sequence, place ?? aside(scene.x[sequence].length, this.plane.frame)));
  }

  #choose(sequence, token) {
    this.#edit((scene) => {
      choose(scene, sequence, token, this.answers.solved?.best ?? []);
      this.state.view.of = "chosen";
    });
  }

  /** Change the tokens, unless this is an exported file. */
  #edit(edit) {
    if (!this.frozen) this.#change(({ scene }) => edit(scene));
  }

  #pressed(event) {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || ["INPUT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "range" && event.target.type !== "checkbox") return;
    event.preventDefault();
    this.#restore(event.shiftKey ? this.history.redo(this.#kept()) : this.history.undo(this.#kept()));
  }

  // What is asked and answered.

  /** Something has changed: ask, and draw what is known already. `time` is when the mouse or key moved. */
  changed(time = performance.now()) {
    this.asked = time;
    this.root.dataset.busy = "";
    this.#ask();
    this.draw(this.plane.drag ? "scene" : "all");
  }

  #ask() {
    if (this.asked === undefined || this.waiting !== null) return;
    this.seq += 1;
    const message = { kind: "scene", seq: this.seq, scene: this.state.scene };
    this.waiting = this.seq;
    this.sceneAsked = this.seq;
    this.sent.set(this.seq, this.asked);
    this.asked = undefined;
    clearTimeout(this.slow);
    this.slow = setTimeout(() => this.#say("computing… a new shape compiles once, for some seconds"), SLOW);
    if (!this.host.send(message)) this.waiting = null;
    clearTimeout(this.basinTimer);
    this.answers.basins = null;
  }

  #askBasins() {
    clearTimeout(this.basinTimer);
    const { view, scene } = this.state;
    this.answers.basins = null;
    if (!view.basins || this.frozen) return this.draw();
    this.basinTimer = setTimeout(() => {
      this.seq += 1;
      this.basinsAsked = this.seq;
      const query = Math.min(view.row, rowsOf(scene).length - 1);
      this.host.send({ kind: "basins", seq: this.seq, scene, basins: { shape: view.shape, radius: view.radius, query, parameterization: view.basinsOf } });
      this.#say("basins: descent from all starts…");
    }, BASINS_AFTER);
    return this.draw();
  }

  #received(message) {
    const take = { hello: () => this.#hello(message), solved: () => this.#solved(message), trained: () => this.#trained(message), error: () => this.#refused(message) }[message.kind];
    if (take) take();
    else if (message.kind === "basins" && message.seq === this.basinsAsked) {
      this.answers.basins = message;
      this.#say("");
      this.draw();
    } else if (message.kind === "python") showCode(this.code, message.text);
    else if (message.kind === "npz") download("tokens.npz", new Blob([bytesOf(message.base64)]), "application/octet-stream");
    else if (message.kind === "html") download("explorer.html", message.text, "text/html");
    if (["python", "npz", "html"].includes(message.kind)) this.#say("");
  }

  #hello(message) {
    const own = message.own ? [{ ...OWN, scene: message.own }] : [];
    this.presets = [...own, ...message.presets];
    this.mostSequences = message.mostSequences;
    this.controls.offer(this.presets);
    this.waiting = null;
    this.shown = { solved: -1, trained: -1 };
    this.answers = this.answers ?? { solved: null, trained: null, basins: null };
    if (!this.state) {
      this.state = this.host.usesAddress ? stateOfAddress(location.hash, this.presets) : stateOf(this.presets[0]);
      this.plane.fit(this.state.scene);
    }
    this.changed();
    this.#askBasins();
  }

  #solved(message) {
    if (message.seq < this.shown.solved) return;
    this.shown.solved = message.seq;
    this.error = null;
    this.answers.solved = message;
    this.#adoptStart(message);
    this.#ready(message.seq);
    this.draw(this.answers.trained ? "solved" : "all");
    this.#drawn("solved", message.seq);
  }

  /** A start that was dragged: the server has found the W that goes there. */
  #adoptStart(message) {
    const { pull } = this.state.scene;
    if (!pull) return;
    message.pulled = { row: pull.query, at: seenInPlane(pull.to, this.state.scene.plane) };
    if (!this.settling || this.plane.drag || this.asked !== undefined || message.seq !== this.sceneAsked) return;
    // Rounded, so that the address is short; then asked about again, so that the numbers are those of what is kept.
    this.state.scene.start = message.start.map((row) => row.map((value) => Number(value.toPrecision(6))));
    delete this.state.scene.pull;
    this.settling = false;
    this.asked = performance.now();
    this.#keepAddress();
  }

  #trained(message) {
    if (message.seq < this.shown.trained) return;
    this.shown.trained = message.seq;
    this.answers.trained = message;
    clearTimeout(this.slow);
    this.#say("");
    this.draw();
    this.#rested(message.seq);
    this.#drawn("trained", message.seq);
    for (const seq of this.sent.keys()) if (seq <= message.seq) this.sent.delete(seq);
    if (this.state.view.basins && !this.answers.basins && this.asked === undefined && !this.plane.drag) this.#askBasins();
  }

  #refused(message) {
    if (message.of === "scene" || message.of === null) {
      this.error = message.message;
      this.#ready(message.seq);
      this.#rested(message.seq);
    }
    clearTimeout(this.slow);
    this.#say(message.of === "scene" ? "" : message.message);
    this.draw();
  }

  #ready(seq) {
    if (this.waiting !== null && (seq === null || seq >= this.waiting)) this.waiting = null;
    this.#ask();
  }

  /** Has the last change been answered in full? */
  #rested(seq) {
    if (seq === this.sceneAsked && this.asked === undefined) delete this.root.dataset.busy;
  }

  /** For whoever measures: how long it took from the event to the changed picture. */
  #drawn(kind, seq) {
    const from = this.sent.get(seq);
    this.root.setAttribute(`data-${kind}`, seq);
    const detail = { kind, seq, milliseconds: from === undefined ? null : performance.now() - from };
    this.root.dispatchEvent(new CustomEvent("attnlab-drawn", { detail }));
  }

  #status(status) {
    const lost = status === "lost";
    set(this.controls.status, { "data-state": status });
    this.root.dataset.host = status;
    clearTimeout(this.slow);
    this.#say(lost ? "The server is gone. What is on the screen stays; it goes on when `attnlab explore` runs again." : "");
    if (lost) {
      this.waiting = null;
      this.asked = this.asked ?? performance.now();
    }
  }

  #say(text) {
    if (this.root.dataset.host !== "lost" || text.startsWith("The server")) this.controls.status.textContent = text;
  }

  // What is drawn.

  #preset() {
    return this.presets.find((one) => one.id === this.state.preset) ?? this.presets[0];
  }

  #measure() {
    const wide = this.attention.body.clientWidth;
    const columns = getComputedStyle(this.attention.body).gridTemplateColumns.split(" ").length;
    this.widths = {
      plane: Math.max(280, Math.min(this.planeBox.clientWidth, 680)),
      attention: (wide - 12 * (columns - 1)) / columns,
      chart: this.loss.body.clientWidth,
    };
  }

  /** Draw everything, or only what `part` of the answers changes: "scene" nothing of them, "solved" no run. */
  draw(part = "all") {
    if (!this.state || !this.answers) return;
    if (!this.widths) this.#measure();
    const { scene, view } = this.state;
    const index = view.at;
    const known = { scene, view, index, error: this.error, ...this.answers, directions: directionsOf(this.answers, view) };
    this.plane.draw(known, this.widths.plane);
    if (part === "scene") return;
    this.numbers.body.replaceChildren(numbersTable(known), ...remarks(known));
    if (part === "solved") return;
    this.controls.show({ preset: this.#preset(), scene, view }, this.frozen);
    this.tools.show(scene, view);
    if (this.frozen) this.plane.handles.get(this.host.draggable)?.classList.add("invited");
    const { trained } = this.answers;
    this.time.show(trained?.runs.W?.steps ?? trained?.runs.KQ?.steps ?? [], index);
    this.attention.body.replaceChildren(...attentionPanels(known, this.widths.attention));
    for (const [one, chart] of [[this.loss, lossChart], [this.margin, marginChart], [this.apart, apartChart]]) one.body.replaceChildren(chart(known, this.widths.chart));
    this.basins.element.hidden = this.frozen;
    this.basins.body.replaceChildren(...(view.basins && !this.frozen ? basinMap(known, this.widths.chart, (at) => this.#startAt(at)) : []));
  }

  #startAt(place) {
    this.history.remember(this.#kept());
    this.startBefore = this.state.scene.start;
    this.#place(`start-${this.answers.basins.query}`, place);
    this.settling = true;
    const { basins } = this.answers;
    this.changed();
    this.answers.basins = basins; // the starts of the map all differ in this one query only
    this.draw();
  }

  // Addresses, and what is taken away.

  #keepAddress() {
    if (!this.host.usesAddress || !this.state || this.state.scene.pull) return;
    const text = addressOf(this.#kept(), this.#preset());
    history.replaceState(null, "", text === null ? " " : `#${text}`);
    if (text === null) this.#say("These tokens are too many for the address; npz keeps them.");
  }

  #takeAddress() {
    this.history.remember(this.#kept());
    this.state = stateOfAddress(location.hash, this.presets);
    this.plane.fit(this.state.scene);
    this.changed();
    this.#askBasins();
  }

  async #take(what) {
    if (what === "svg" || what === "png") {
      const { trained } = this.answers;
      const run = trained?.runs.W ?? trained?.runs.KQ;
      const step = run?.steps?.[this.state.view.at ?? run.steps.length - 1] ?? 0;
      await downloadPicture(what, this.plane.element, this.root, `${this.#preset().title}; step ${step}; solid: W, Frobenius; dashed: (K, Q), nuclear`);
      return;
    }
    this.seq += 1;
    const { scene } = this.state;
    const [sequence, token] = this.moved;
    const moved = scene.x[sequence]?.[token] ? this.moved : [0, 0];
    if (what === "html") this.#say("computing the frames of the file…");
    this.host.send({ kind: what, seq: this.seq, scene, ...(what === "html" ? { moved, title: this.#preset().title } : {}) });
  }
}

/** Render the explorer into an element; `host` is one of `serverHost`, `widgetHost`, `frozenHost`. */
export function render(element, host) {
  return new Explorer(element, host);
}

export { frozenHost, serverHost, widgetHost };

export default {
  render({ model, el }) {
    const inner = html("div", {});
    el.append(inner);
    render(inner, widgetHost(model));
  },
};
