// The bar of settings above the plane, and the slider of time below it.

import { colourOf, html, marker, sequenceName, set, svg } from "./drawing.js";

const RULES = { ngd: "normalized GD", gd: "gradient descent", heavy_ball: "heavy ball", polyak: "Polyak (cap)", adam: "Adam" };
const LOSSES = { logistic: "logistic", exponential: "exponential", correlation: "correlation" };
const HEADS = { linear: "linear, v.o", concave: "concave, v.o − λ|o|²" };
const WHOSE = { descent: "what descent selects", best: "the best tokens", chosen: "tokens chosen by hand" };

function labelled(text, control) {
  return html("label", {}, html("span", {}, text), control);
}

function choice(id, options, onChange) {
  return html("select", { id, change: (event) => onChange(event.target.value) }, ...Object.entries(options).map(([value, text]) => html("option", { value }, text)));
}

function button(id, text, title, onClick) {
  return html("button", { type: "button", "data-action": id, title, "aria-label": title, click: onClick }, text);
}

/**
 * The controls. `act` has functions: preset, setting(name, value), view(name, value), undo, redo, fit, theme,
 * addSequence, removeSequence, flip(sequence), addToken(sequence), removeToken(sequence), randomStart, take(what).
 */
export class Controls {
  constructor(act) {
    this.preset = html("select", { id: "preset", change: (event) => act.preset(event.target.value) });
    this.rule = choice("rule", RULES, (value) => act.setting("rule", value));
    this.step = html("input", { id: "step", type: "number", min: 0.001, max: 1000, step: "any", change: (event) => act.setting("step", Number(event.target.value)) });
    this.loss = choice("loss", LOSSES, (value) => act.setting("loss", value));
    this.steps = html("input", { id: "steps", type: "number", min: 1, max: 20000, step: 1, change: (event) => act.setting("steps", Math.round(Number(event.target.value))) });
    this.head = choice("head", HEADS, (value) => act.setting("head", value));
    this.strength = html("input", { id: "strength", type: "range", min: 0, max: 2, step: 0.05, input: (event) => act.setting("strength", Number(event.target.value)) });
    this.strengthText = html("output", {});
    this.strengthLabel = labelled("λ", html("span", { class: "pair" }, this.strength, this.strengthText));
    this.of = choice("of", WHOSE, (value) => act.view("of", value));
    this.shownW = html("input", { type: "checkbox", id: "show-W", change: (event) => act.view("W", event.target.checked) });
    this.shownKQ = html("input", { type: "checkbox", id: "show-KQ", change: (event) => act.view("KQ", event.target.checked) });
    this.axes = [0, 1].map((k) => html("select", { id: `axis-${k}`, change: (event) => act.axis(k, event.target.value) }));
    this.axesBox = html("span", { class: "group" }, labelled("across", this.axes[0]), labelled("up", this.axes[1]));
    this.hint = html("p", { class: "hint" });
    this.status = html("p", { class: "status", role: "status", "aria-live": "polite" });
    this.sequences = html("div", { class: "sequences" });
    this.editing = html(
      "div",
      { class: "row" },
      this.sequences,
      button("add-sequence", "+ sequence", "add a sequence", act.addSequence),
      button("random-start", "random start", "a random small start", act.randomStart),
      button("fit", "fit", "fit everything into the plane", act.fit),
    );
    const takes = [
      ["python", "copy as Python", "a program that gives the numbers on the screen"],
      ["npz", "npz", "the tokens, for al.Tokens.load and attnlab explore"],
      ["svg", "SVG", "the plane as SVG"],
      ["png", "PNG", "the plane as PNG"],
      ["html", "HTML", "one file that works without a server; the token that was moved last can be dragged in it"],
    ];
    this.takes = html("span", { class: "group" }, html("span", { class: "soft" }, "take away"), ...takes.map(([id, text, title]) => button(id, text, title, () => act.take(id))));
    this.undo = button("undo", "↶", "undo (Ctrl+Z)", act.undo);
    this.redo = button("redo", "↷", "redo (Ctrl+Shift+Z)", act.redo);
    this.presetLabel = labelled("scene", this.preset);
    this.settings = html("div", { class: "row" }, labelled("rule", this.rule), labelled("step", this.step), labelled("loss", this.loss), labelled("steps", this.steps), labelled("head h(o)", this.head), this.strengthLabel);
    this.element = html(
      "header",
      {},
      html("div", { class: "row" }, html("h1", {}, "attnlab explorer"), this.presetLabel, this.undo, this.redo, this.takes, button("theme", "◐", "light or dark", act.theme)),
      this.hint,
      this.settings,
      html("div", { class: "row" }, labelled("max-margin directions of", this.of), html("label", { class: "of-W" }, this.shownW, "W, Frobenius (solid)"), html("label", { class: "of-KQ" }, this.shownKQ, "(K, Q), nuclear (dashed)"), this.axesBox),
      this.status,
    );
    this.act = act;
  }

  /** Which presets there are. */
  offer(presets) {
    this.preset.replaceChildren(...presets.map((one) => html("option", { value: one.id }, one.title)));
  }

  /** Show a state. */
  show({ preset, scene, view }, frozen) {
    const values = { rule: scene.rule, step: scene.step, loss: scene.loss, steps: scene.steps, head: scene.head, strength: scene.strength, of: view.of };
    for (const [name, value] of Object.entries(values)) if (document.activeElement !== this[name] || this[name].tagName === "SELECT") this[name].value = value;
    this.preset.value = preset.id;
    this.strengthText.textContent = scene.strength;
    this.strengthLabel.hidden = scene.head !== "concave";
    this.shownW.checked = view.W;
    this.shownKQ.checked = view.KQ;
    this.hint.textContent = frozen ? `${preset.title}. Nothing is computed here: drag the token in the ring, move the slider of time, or press play.` : preset.hint;
    this.#showAxes(scene, preset);
    this.#showSequences(scene);
    for (const control of [this.rule, this.step, this.loss, this.steps, this.head, this.strength]) control.disabled = frozen;
    this.of.querySelector("[value=chosen]").disabled = scene.chosen === null;
    this.presetLabel.hidden = frozen;
    this.editing.hidden = frozen;
    for (const id of ["npz", "html"]) this.takes.querySelector(`[data-action=${id}]`).hidden = frozen;
  }

  #showAxes(scene, preset) {
    const d = scene.v.length;
    this.axesBox.hidden = d <= 2;
    if (d <= 2) return;
    const options = ["principal", ...Array.from({ length: d }, (_, k) => String(k))];
    this.axes.forEach((select, k) => {
      if (select.options.length !== options.length) select.replaceChildren(...options.map((value) => html("option", { value }, value === "principal" ? `principal ${k + 1}` : `coordinate ${value}`)));
      const row = scene.plane[k];
      const principal = JSON.stringify(row) === JSON.stringify(preset.scene.plane[k]);
      select.value = principal ? "principal" : String(row.indexOf(1));
    });
  }

  #showSequences(scene) {
    const shown = scene.x.length <= 6;
    const text = JSON.stringify([scene.y, scene.x.map((one) => one.length)]);
    if (this.sequences.dataset.shown === text) return;
    this.sequences.dataset.shown = text;
    const boxes = !shown
      ? [html("span", { class: "soft" }, `${scene.x.length} sequences`)]
      : scene.x.map((tokens, i) => {
          const label = scene.y[i];
          const shape = svg("svg", { width: 18, height: 18, viewBox: "-9 -9 18 18" }, svg("path", { d: marker(i, 6), fill: colourOf(i) }));
          const flip = typeof label === "number" ? button(`flip-${i}`, label > 0 ? "y = +1" : "y = −1", `flip the label of sequence ${sequenceName(i)}`, () => this.act.flip(i)) : null;
          return html(
            "span",
            { class: "sequence" },
            shape,
            html("b", {}, sequenceName(i)),
            flip,
            button(`add-token-${i}`, "+", `add a token to sequence ${sequenceName(i)}`, () => this.act.addToken(i)),
            button(`remove-token-${i}`, "−", `remove the last token of sequence ${sequenceName(i)}`, () => this.act.removeToken(i)),
            scene.x.length > 1 ? button(`remove-sequence-${i}`, "×", `remove sequence ${sequenceName(i)}`, () => this.act.removeSequence(i)) : null,
          );
        });
    this.sequences.replaceChildren(...boxes);
  }
}

/** Play, and a slider over the records of the descent. */
export class TimeBar {
  constructor(onMove) {
    this.onMove = onMove;
    this.play = html("button", { type: "button", "data-action": "play", "aria-label": "play or pause", click: () => this.toggle() }, "▶ play");
    this.slider = html("input", { type: "range", id: "time", min: 0, step: 1, "aria-label": "time", input: () => this.#moved(Number(this.slider.value)) });
    this.text = html("output", { for: "time" });
    this.element = html("div", { class: "time" }, this.play, this.slider, this.text);
    this.timer = null;
    this.count = 0;
  }

  /** Show the records of a run; `index` null is the last one. */
  show(steps, index) {
    this.count = steps.length;
    const now = index === null ? steps.length - 1 : Math.min(index, steps.length - 1);
    set(this.slider, { max: Math.max(0, steps.length - 1) });
    this.slider.value = now;
    this.text.textContent = steps.length ? `step ${steps[now]}` : "";
  }

  toggle() {
    if (this.timer) this.stop();
    else {
      if (Number(this.slider.value) >= this.count - 1) this.onMove(0);
      this.play.textContent = "⏸ pause";
      this.timer = setInterval(() => {
        const next = Number(this.slider.value) + 1;
        if (next >= this.count - 1) this.stop();
        this.#moved(next);
      }, 60);
    }
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "▶ play";
  }

  #moved(index) {
    this.onMove(index >= this.count - 1 ? null : index);
  }
}
