// Talking to the server: the token of this page, what forms offer, and runs of verbs.

const token = readToken();

function readToken() {
  const given = location.hash.startsWith("#token=") ? location.hash.slice("#token=".length) : "";
  if (given) history.replaceState(null, "", location.pathname + "#plan");  // it does not stay in the address
  return given || localStorage.getItem("tangram-token") || "";
}

async function checked(response) {
  if (!response.ok) throw new Error((await response.text()) || `status ${response.status}`);
  return response;
}

const api = async (path, method = "GET") => checked(await fetch(`api/${path}`, { method, headers: { "x-tangram-token": token } }));

export const choices = async () => {
  const found = await (await api("choices")).json();
  localStorage.setItem("tangram-token", token);  // it was accepted: a second tab of this address needs it, too
  return found;
};

/** Answers that the server keeps: all in a list; {kept_at, request, answer} of one; their questions as a file. */
export const keptAnswers = async () => (await api("history")).json();
export const keptAnswer = async (key) => (await api(`history/${encodeURIComponent(key)}`)).json();
export const keptQuestions = async () => (await api("history/questions.yaml")).text();

/** Delete a kept answer; all where the key is empty. */
export const forgetKept = (key) => api(key ? `history/${encodeURIComponent(key)}` : "history", "DELETE");

/** Run a verb. `told(progress)` hears how far it is; aborting `signal` ends the run. Resolves to its answer. */
export async function run(request, { told = () => {}, signal } = {}) {
  const response = await checked(await fetch("api/run", {
    method: "POST", signal, headers: { "content-type": "application/json", "x-tangram-token": token },
    body: JSON.stringify(request),
  }));
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = "", answer = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done && answer) return answer;
    if (done) throw new Error("the page's server has gone");
    rest += decoder.decode(value, { stream: true });
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [head, ...data] = part.split("\n");
      const body = JSON.parse(data.join("\n").slice("data: ".length));
      if (head === "event: progress") told(body);
      else answer = body;
    }
  }
}

/** Offer text, or bytes as a Blob, as a file. */
export function save(name, text, type = "text/plain") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(text instanceof Blob ? text : new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
