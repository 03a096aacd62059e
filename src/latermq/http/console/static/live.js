// The event stream: through a worker that all tabs share, else through one tab that passes it on, else one per tab.
const CHANNEL = "latermq-live";
const SILENT_MS = 10_000, RETRY_MS = 2_000, HERE_MS = 20_000;

export function listen(workerPath, hear) {
  if (window.SharedWorker) return throughWorker(workerPath, hear);
  if (navigator.locks && window.BroadcastChannel) return throughOneTab(hear);
  return whileVisible(hear);
}

function throughWorker(path, hear) {
  const {port} = new SharedWorker(path);
  port.onmessage = event => hear(event.data);
  port.start();
  setInterval(() => port.postMessage("here"), HERE_MS);
  addEventListener("pagehide", () => port.postMessage("bye"));
  addEventListener("pageshow", event => event.persisted && location.reload());
}

function throughOneTab(hear) {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = event => hear(event.data);
  // The lock is released when the tab that has it is closed; then another one opens the stream.
  navigator.locks.request(CHANNEL, () => new Promise(() => {
    open(message => { hear(message); channel.postMessage(message); });
  }));
}

function whileVisible(hear) {
  let close = null;
  const turn = () => {
    if (document.hidden) { close?.(); close = null; }
    else close ??= open(hear);
  };
  document.addEventListener("visibilitychange", turn);
  turn();
}

function open(tell) {
  let source, heard, isClosed = false;
  const connect = () => {
    if (isClosed) return;
    heard = Date.now();
    source = new EventSource("/live");
    source.addEventListener("state", event => { heard = Date.now(); tell({state: "live"}); tell({data: JSON.parse(event.data)}); });
    source.addEventListener("trouble", event => { heard = Date.now(); tell({state: "trouble", trouble: JSON.parse(event.data)}); });
    source.onerror = async () => {
      tell({state: "lost"});
      if (source.readyState !== EventSource.CLOSED) return;
      setTimeout(connect, RETRY_MS);
      try {
        if ((await fetch("/live", {method: "HEAD"})).status === 401) tell({state: "signed-out"});
      } catch (unreachable) { /* the state is "lost" already */ }
    };
  };
  const watch = setInterval(() => {
    if (Date.now() - heard > SILENT_MS) { tell({state: "lost"}); source.close(); connect(); }
  }, RETRY_MS);
  connect();
  return () => { isClosed = true; clearInterval(watch); source.close(); };
}
