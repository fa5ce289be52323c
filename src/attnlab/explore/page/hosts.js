// Where answers come from: the local server, the kernel of a notebook, or an exported file.

const LONGEST_WAIT = 3000;

/** The server that served this page. If it goes away, it is looked for until it is back. */
export function serverHost() {
  const host = { kind: "server", onMessage: () => {}, onStatus: () => {}, usesAddress: true };
  let socket = null;
  let wait = 250;
  const open = () => {
    const address = new URL("live", location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    address.hash = "";
    socket = new WebSocket(address);
    socket.onopen = () => {
      wait = 250;
      host.onStatus("open");
    };
    socket.onmessage = (event) => host.onMessage(JSON.parse(event.data));
    socket.onclose = () => {
      host.onStatus("lost");
      setTimeout(open, wait);
      wait = Math.min(LONGEST_WAIT, wait * 1.5);
    };
  };
  host.start = open;
  host.send = (message) => {
    if (socket?.readyState !== WebSocket.OPEN) return false;
    socket.send(JSON.stringify(message));
    return true;
  };
  return host;
}

/** A notebook's kernel, through the model of a widget. */
export function widgetHost(model) {
  const host = { kind: "widget", onMessage: () => {}, onStatus: () => {}, usesAddress: false };
  host.start = () => {
    model.on("msg:custom", (content) => host.onMessage(content));
    host.onStatus("open");
    model.send({ kind: "hello" });
  };
  host.send = (message) => {
    model.send(message);
    return true;
  };
  return host;
}

/** An exported file: one scene, and frames in which one token stands elsewhere. */
export function frozenHost(content) {
  const host = { kind: "frozen", onMessage: () => {}, onStatus: () => {}, usesAddress: false, content };
  const [sequence, token] = content.moved;
  host.start = () => {
    host.onStatus("open");
    const preset = { id: "", title: content.title, hint: "", view: {}, scene: content.scene };
    host.onMessage({ kind: "hello", presets: [preset], own: null, mostSequences: 0 });
  };
  host.send = (message) => {
    if (message.kind === "python") host.onMessage({ kind: "python", seq: message.seq, text: content.python });
    if (message.kind !== "scene") return true;
    const place = message.scene.x[sequence][token];
    const unmoved = place.every((value, k) => value === content.scene.x[sequence][token][k]);
    const frame = unmoved || !content.frames.length ? content.answers : nearest(content.frames, place);
    host.onMessage({ ...frame.solved, kind: "solved", seq: message.seq });
    host.onMessage({ ...frame.trained, kind: "trained", seq: message.seq });
    return true;
  };
  /** The nearest place that was computed for the token that can be dragged. */
  host.snapped = (place) => (content.frames.length ? nearest(content.frames, place).token : content.scene.x[sequence][token]);
  host.draggable = `token-${sequence}-${token}`;
  return host;
}

function nearest(frames, place) {
  const away = (frame) => frame.token.reduce((sum, value, k) => sum + (value - place[k]) ** 2, 0);
  return frames.reduce((best, frame) => (away(frame) < away(best) ? frame : best));
}
