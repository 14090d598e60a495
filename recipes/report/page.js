"use strict";
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const key = "rufus-report:" + location.pathname;

  // ---- a stage that is linked to opens
  const reveal = () => {
    let at = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let node = at; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (at) at.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  all('a[href^="#"]').forEach((link) => link.addEventListener("click", () => setTimeout(reveal)));

  // ---- a living run: load anew, and look the same afterwards
  const live = document.querySelector("[data-refresh]");
  const keep = () => {
    const open = {};
    all("details[id]").forEach((part) => (open[part.id] = part.open));
    const scrolled = {};
    all(".scroll").forEach((part, n) => part.scrollLeft && (scrolled[n] = part.scrollLeft));
    try {
      sessionStorage.setItem(key, JSON.stringify({ open, scrolled, x: scrollX, y: scrollY, paused: paused }));
    } catch (error) {
      return; // no storage: the page starts at its top
    }
  };
  let paused = false;
  let kept = null;
  try {
    kept = JSON.parse(sessionStorage.getItem(key));
    sessionStorage.removeItem(key);
  } catch (error) {
    kept = null;
  }
  if (kept) {
    if ("scrollRestoration" in history) history.scrollRestoration = "manual";
    for (const [id, open] of Object.entries(kept.open)) {
      const part = document.getElementById(id);
      if (part) part.open = open;
    }
    all(".scroll").forEach((part, n) => (part.scrollLeft = kept.scrolled[n] || 0));
    scrollTo(kept.x, kept.y);
    paused = kept.paused;
  } else if (location.hash) reveal();
  if (live) {
    const button = document.getElementById("pause");
    const show = () => {
      button.setAttribute("aria-pressed", String(paused));
      button.textContent = paused ? "Go on" : "Pause";
    };
    button.addEventListener("click", () => {
      paused = !paused;
      show();
    });
    show();
    setInterval(() => {
      // a page that nobody writes any more says nothing new
      if (paused || Date.now() / 1000 - Number(live.dataset.written) > Number(live.dataset.quiet)) return;
      keep();
      location.reload();
    }, 1000 * Number(live.dataset.refresh));
  }

  // ---- copy
  all("button.copy").forEach((button) =>
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre");
      const say = (word) => {
        button.textContent = word;
        setTimeout(() => (button.textContent = "Copy"), 1500);
      };
      try {
        await navigator.clipboard.writeText(text.textContent);
        say("Copied");
      } catch (error) {
        getSelection().selectAllChildren(text);
        say("Selected");
      }
    }),
  );

  // ---- charts: what stands at a step
  const numbers = (text) => text.split(",").map((word) => (word === "" ? null : Number(word)));
  all("figure.chart").forEach((figure) => {
    const plot = figure.querySelector("svg.plot");
    const readout = figure.querySelector(".readout");
    const cursor = plot.querySelector(".cursor");
    const left = Number(figure.dataset.left);
    const width = plot.viewBox.baseVal.width - left - Number(figure.dataset.right);
    const shared = figure.dataset.kind === "share";
    let series = null;
    let steps = null;
    let at = -1;
    const read = () => {
      if (steps) return;
      steps = numbers(plot.dataset.x);
      series = all("path[data-name]", plot).map((path) => ({
        name: path.dataset.name,
        x: path.dataset.x ? numbers(path.dataset.x) : steps,
        y: numbers(path.dataset.y),
      }));
    };
    const place = (n) =>
      shared
        ? left + (width * (n + 0.5)) / steps.length
        : left + width * (first() === last() ? 0.5 : (steps[n] - first()) / (last() - first()));
    const first = () => Math.min(...series.map((one) => one.x[0]));
    const last = () => Math.max(...series.map((one) => one.x[one.x.length - 1]));
    const show = (n) => {
      at = Math.max(0, Math.min(steps.length - 1, n));
      const words = series.map((one) => {
        let near = at;
        if (one.x !== steps) {
          near = one.x.reduce((best, x, i) => (Math.abs(x - steps[at]) < Math.abs(one.x[best] - steps[at]) ? i : best), 0);
          if (one.x[near] !== steps[at]) return "";
        }
        const value = one.y[near];
        if (shared && !value) return "";
        const said = value === null ? "–" : shared ? (100 * value).toFixed(0) + " %" : String(value);
        return " · " + one.name + " " + said;
      });
      readout.textContent = "step " + steps[at] + words.join("");
      cursor.setAttribute("transform", "translate(" + place(at).toFixed(1) + ",0)");
      cursor.setAttribute("visibility", "visible");
    };
    const rest = () => {
      readout.textContent = readout.dataset.rest;
      cursor.setAttribute("visibility", "hidden");
    };
    plot.addEventListener("pointermove", (event) => {
      read();
      const box = plot.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width;
      let best = 0;
      steps.forEach((_, n) => {
        if (Math.abs(place(n) - x) < Math.abs(place(best) - x)) best = n;
      });
      show(best);
    });
    plot.addEventListener("pointerleave", rest);
    plot.addEventListener("blur", rest);
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
      if (!move) return;
      event.preventDefault();
      read();
      show(at < 0 ? (move > 0 ? 0 : steps.length - 1) : at + move);
    });
  });

  // ---- tokens: what the model thought of one
  const said = { sampled: "sampled", told: "tool or environment", masked: "masked: sampled, left out of the loss" };
  let marked = null;
  const mark = (token) => {
    if (marked) marked.classList.remove("at");
    marked = token;
    token.classList.add("at");
    const kind = ["sampled", "told", "masked"].find((name) => token.parentElement.classList.contains(name));
    const p = token.dataset.p;
    const words = ["token " + token.dataset.n, said[kind]];
    if (p !== undefined) {
      words.push("log-probability " + p.replace("-", "−"), "probability " + Math.exp(Number(p)).toPrecision(3));
    }
    token.closest(".rollout").querySelector(".token-readout").textContent = words.join(" · ");
  };
  all(".tokens").forEach((block) => {
    const pick = (event) => event.target.closest("i[data-n]") && mark(event.target.closest("i[data-n]"));
    block.addEventListener("pointerover", pick);
    block.addEventListener("click", pick);
    block.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const list = all("i[data-n]", block);
      const now = list.indexOf(marked);
      if (list.length) mark(list[now < 0 ? 0 : Math.max(0, Math.min(list.length - 1, now + move))]);
      if (marked) marked.scrollIntoView({ block: "nearest" });
    });
  });
})();
