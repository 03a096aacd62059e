// One event stream for all tabs of a browser. HTTP/1.1 allows six connections to a host, and a stream holds one.
const SILENT_MS = 10_000;   // a stream without an event for this long is dead, even if the connection seems open
const RETRY_MS = 2_000;
const ports = new Map();    // port → when the page was last heard
let source = null, heard = 0, timer = 0;
let last = {state: "connecting"}, data = null;

const post = message => { for (const port of ports.keys()) port.postMessage(message); };
const turn = state => { last = {state}; post(last); };

function close() {
  source?.close();
  source = null;
  clearTimeout(timer);
}

function reopen() {
  close();
  if (ports.size) timer = setTimeout(open, RETRY_MS);
}

function open() {
  close();
  heard = Date.now();
  source = new EventSource("/live");
  source.addEventListener("state", event => { heard = Date.now(); data = JSON.parse(event.data); turn("live"); post({data}); });
  source.addEventListener("trouble", event => { heard = Date.now(); last = {state: "trouble", trouble: JSON.parse(event.data)}; post(last); });
  source.onerror = async () => {
    const isRefused = source?.readyState === EventSource.CLOSED;
    turn("lost");
    if (!isRefused) return;   // the browser connects again by itself
    reopen();
    try {
      if ((await fetch("/live", {method: "HEAD"})).status === 401) turn("signed-out");
    } catch (unreachable) { /* the state is "lost" already */ }
  };
}

setInterval(() => {
  for (const [port, seen] of ports) if (Date.now() - seen > 60_000) ports.delete(port);   // closed without a word
  if (!ports.size) close();
  else if (source && Date.now() - heard > SILENT_MS) { turn("lost"); reopen(); }
}, 5_000);

onconnect = ({ports: [port]}) => {
  ports.set(port, Date.now());
  port.onmessage = ({data: word}) => {
    ports.set(port, Date.now());
    if (word === "bye") ports.delete(port);
    if (!ports.size) { close(); data = null; last = {state: "connecting"}; }
    else if (!source && word === "here") open();
  };
  port.postMessage(last);
  if (data) port.postMessage({data});
  if (!source) open();
};
