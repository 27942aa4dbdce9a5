// Readings as they come. Nothing is asked for while nobody looks: a page in the background follows nothing.

/**
 * Follows topics until it is closed. `told` gets each reading: its topic, and a document or an error. `changed` gets
 * "live", "connecting" or "paused".
 */
export function follow(topics, told, changed) {
  let source = null;
  const open = () => {
    changed("connecting");
    const query = topics.map((topic) => `topic=${encodeURIComponent(topic)}`).join("&");
    source = new EventSource(`events?${query}`);
    source.onopen = () => changed("live");
    source.onerror = () => {
      changed("connecting");
      // The browser tries again by itself, but not after an answer that is no stream.
      if (source.readyState === EventSource.CLOSED) again();
    };
    source.onmessage = (event) => told(JSON.parse(event.data));
  };
  let timer = null;
  const again = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { close(); open(); }, 2_000);
  };
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const seen = () => {
    if (document.hidden) {
      close();
      changed("paused");
    } else if (!source) {
      open();
    }
  };
  document.addEventListener("visibilitychange", seen);
  if (topics.length) seen();
  else changed("live");
  return () => {
    document.removeEventListener("visibilitychange", seen);
    close();
  };
}

/** Asks a question of a site: a document, or an Error with the command's own words. */
export function ask(question, site, fields) {
  return post(`questions/${encodeURIComponent(question)}`, site, fields);
}

/** Does something to a site, where that is allowed: as `ask`. */
export function act(action, site, fields) {
  return post(`actions/${encodeURIComponent(action)}`, site, fields);
}

async function post(path, site, fields) {
  const response = await fetch(path, { method: "POST", body: JSON.stringify({ site, fields }) });
  const said = await response.json();
  if (!response.ok) throw new Error(said.error);
  return said;
}
