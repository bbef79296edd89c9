// Updates an open page. Every page also works without scripts, with plain forms and links.
import { drawCharts } from "./charts.js";
import { follow } from "./live.js";
import { updateTimes } from "./times.js";

updateTimes(document);
drawCharts(document);
setInterval(() => updateTimes(document), 1000);
addEventListener("resize", () => drawCharts(document));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(document));

addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

if (document.body.dataset.events) {
  follow(document.body.dataset.events, (changed) => {
    updateTimes(changed);
    drawCharts(changed);
  });
}
