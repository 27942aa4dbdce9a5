// Receives readings from the console's server. A page in the background is disconnected, so that nothing is read for it.

/**
 * Follows topics until the returned function is called. `onReading` gets each reading: its topic, and a document or an
 * error. `onState` gets "live", "connecting" or "paused".
 */
export function follow(topics, onReading, onState) {
  let source = null;
  const open = () => {
    onState("connecting");
    const query = topics.map((topic) => `topic=${encodeURIComponent(topic)}`).join("&");
    source = new EventSource(`events?${query}`);
    source.onopen = () => onState("live");
    source.onerror = () => {
      onState("connecting");
      // The browser reconnects by itself, except after a response that isn't an event stream.
      if (source.readyState === EventSource.CLOSED) reopenLater();
    };
    source.onmessage = (event) => onReading(JSON.parse(event.data));
  };
  let timer = null;
  const reopenLater = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { close(); open(); }, 2_000);
  };
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const followVisibility = () => {
    if (document.hidden) {
      close();
      onState("paused");
    } else if (!source) {
      open();
    }
  };
  document.addEventListener("visibilitychange", followVisibility);
  if (topics.length) followVisibility();
  else onState("live");
  return () => {
    document.removeEventListener("visibilitychange", followVisibility);
    close();
  };
}

/** Asks a question about a site. Returns a document, or throws an Error with the same text as the command's error. */
export function ask(question, site, fields) {
  return post(`questions/${encodeURIComponent(question)}`, site, fields);
}

/** Runs an action on a site, if actions are allowed. Returns and throws as `ask` does. */
export function act(action, site, fields) {
  return post(`actions/${encodeURIComponent(action)}`, site, fields);
}

async function post(path, site, fields) {
  const response = await fetch(path, { method: "POST", body: JSON.stringify({ site, fields }) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}
