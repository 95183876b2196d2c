"""What a reader needs of a page: words that stand out, rows that fit, paper without buttons."""

import json

ENOUGH = 4.5  # contrast of words, WCAG 2.2 level AA

# Of every visible text: its colour against the nearest background that is not transparent.
_FAINT = """
(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((one) => one / 255)
    .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0.5) return found;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
    if (!words || !element.checkVisibility()) continue;
    if (element.closest("script, style, noscript, title")) continue;
    const style = getComputedStyle(element), inside = element.closest("svg");
    const own = light(parts(inside ? style.fill : style.color));
    const pair = [own, light(behind(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < ENOUGH) faint.add(`${words.slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return [...faint];
})()
"""
_PRESSED = (
    "[...document.querySelectorAll('button, form, nav, .drop, progress')]"
    ".filter(e => e.checkVisibility()).map(e => e.textContent.slice(0, 40))"
)
_WIDER = (
    "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    ".map(e => e.innerText.slice(0, 60))"
)


def faint(page):
    """Words that stand out too little, with their contrast."""
    return page.evaluate(_FAINT.replace("ENOUGH", json.dumps(ENOUGH)))


def cut_tables(page):
    """Tables of which a part can only be seen by moving them."""
    return page.evaluate(_WIDER)


def pressed_in_print(page):
    """What is printed though paper cannot be pressed."""
    page.send("Emulation.setEmulatedMedia", media="print")
    found = page.evaluate(_PRESSED)
    page.send("Emulation.setEmulatedMedia", media="")
    return found
