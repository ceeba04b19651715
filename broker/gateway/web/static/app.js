// Script of the admin server's web page: refreshes the live part, and sends changes after a confirmation.
// It needs no library and no build. Without it the pages can be read, and nothing can be changed.
"use strict";

const live = document.getElementById("live");
const message = document.getElementById("message");
const age = document.getElementById("age");
const pause = document.getElementById("pause");
const dialog = document.getElementById("confirm");
const REQUEST_TIMEOUT_MS = 20000;
let paused = false;
let asking = false;
let changed = Date.now();
let chosen = null;

function say(text, isBad) {
  message.textContent = text;
  message.className = isBad ? "bad" : "";
  message.hidden = text === "";
}

function keyOf(element) {
  if (!element || !live.contains(element)) return null;
  const same = (other) =>
    other.tagName === element.tagName &&
    other.getAttribute("href") === element.getAttribute("href") &&
    other.dataset.post === element.dataset.post &&
    other.textContent === element.textContent;
  const index = [...live.querySelectorAll("a, button")].filter(same).indexOf(element);
  return { same, index };
}

function replaceLive(html) {
  const key = keyOf(document.activeElement);
  const parsed = new DOMParser().parseFromString(html, "text/html");
  live.replaceChildren(...parsed.body.childNodes);
  if (key) {
    const found = [...live.querySelectorAll("a, button")].filter(key.same);
    if (found[key.index]) found[key.index].focus({ preventScroll: true });
  }
}

async function refresh() {
  if (asking || paused || document.hidden || dialog.open) return;
  asking = true;
  try {
    const response = await fetch(location.href, {
      headers: { "X-Tierlog-Part": "1" },
      signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
    });
    const isPage = (response.headers.get("Content-Type") || "").startsWith("text/html");
    if (!isPage) throw new Error(`status ${response.status}`);
    const text = await response.text();
    if (!dialog.open) replaceLive(text);
    changed = Date.now();
    if (message.dataset.stale) {
      delete message.dataset.stale;
      say("");
    }
  } catch (failure) {
    message.dataset.stale = "1";
    say(`The node does not answer (${failure.message}). This is what it said before.`, true);
  } finally {
    asking = false;
  }
}

function showAge() {
  const seconds = Math.round((Date.now() - changed) / 1000);
  age.textContent = paused ? "refresh is paused" : seconds < 2 ? "just refreshed" : `refreshed ${seconds} s ago`;
}

function errorOf(status, body) {
  if (body && body.error) return body.error;
  const failed = ((body && body.outcomes) || []).filter((one) => one.error);
  if (failed.length) {
    const one = failed[0];
    return `${failed.length} failed, the first is ${one.topic}-${one.partition}: ${one.message || one.error}`;
  }
  return status >= 400 ? `status ${status}` : "";
}

// What the response says beside success: a broker whose leaderships were moved away keeps some.
function restOf(body) {
  return body && body.leads
    ? ` It still leads ${body.leads} partitions whose other replicas have not caught up: wait for them before a restart.`
    : "";
}

async function send(button) {
  say("Sending …");
  button.disabled = true;
  try {
    const response = await fetch(button.dataset.post, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: button.dataset.body,
      signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
    });
    const body = await response.json().catch(() => null);
    const error = errorOf(response.status, body);
    const rest = restOf(body);
    say(error ? `Refused: ${error}` : `Done: ${button.textContent}.${rest}`, Boolean(error || rest));
  } catch (failure) {
    say(`No answer (${failure.message}). The change may have been made.`, true);
  }
  button.disabled = false;
  await refresh();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button) return;
  chosen = button;
  document.getElementById("question").textContent = button.dataset.question;
  dialog.showModal();
  document.getElementById("cancel").focus();
});
document.getElementById("cancel").addEventListener("click", () => dialog.close());
document.getElementById("go").addEventListener("click", () => {
  dialog.close();
  if (chosen) send(chosen);
});
pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Resume refresh" : "Pause refresh";
  showAge();
});

if (live.dataset.refresh) {
  pause.hidden = false;
  setInterval(refresh, Number(live.dataset.refresh));
  setInterval(showAge, 1000);
  document.addEventListener("visibilitychange", refresh);
}
