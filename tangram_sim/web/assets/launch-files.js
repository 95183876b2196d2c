// What starts an answer: the files that an export verb writes, to read, to download one by one or as a folder.

import { archive } from "./archive.js";
import { run, save } from "./ask.js";
import { failure, h, notes } from "./dom.js";

/** `buttons` that ask `verb` for the files of a plan, in the format that the field `to` has, and where they are `shown`. */
export function launchFiles(verb, to, files) {
  const shown = h("div", { role: "status" });
  const ask = async () => {
    shown.replaceChildren("writing the files");
    const folder = `launch-${to.value()}`;
    const found = await run({ verb, arguments: Object.keys(files), options: { to: to.value() }, files });
    if (found.code) {
      shown.replaceChildren(failure(found.error));
      return;
    }
    const made = found.document.files;
    const inFolder = () => Object.fromEntries(Object.entries(made).map(([name, text]) => [`${folder}/${name}`, text]));
    shown.replaceChildren(...notes(found.document.notes), h("p", {}, h("button", { type: "button",
      onclick: () => save(`${folder}.tar`, archive(inFolder())) }, "Download the launch folder"), " as one archive"),
    ...Object.entries(made).map(([name, text]) => h("details", { open: Object.keys(made).length === 1 }, h("summary", {}, name, " ",
      h("button", { type: "button", onclick: () => save(name, text) }, "download")), h("pre", { tabindex: 0 }, text))));
  };
  return { buttons: [to.element, h("button", { type: "button", onclick: ask }, "Launch files")], shown };
}
