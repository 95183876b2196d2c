// Talking to the server: the token of this page, what forms offer, and runs of verbs.

const token = readToken();

function readToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("tangram-token", given);
    history.replaceState(null, "", location.pathname + "#plan");  // it does not stay in the address
  }
  return sessionStorage.getItem("tangram-token") || "";
}

async function checked(response) {
  if (!response.ok) throw new Error((await response.text()) || `status ${response.status}`);
  return response;
}

export async function choices() {
  return (await checked(await fetch("api/choices", { headers: { "x-tangram-token": token } }))).json();
}

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

/** Offer text as a file. */
export function save(name, text, type = "text/plain") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
