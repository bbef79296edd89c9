// What makes a page live. Every page works without it: forms and links are forms and links.
import { drawCharts } from "./charts.js";
import { follow } from "./live.js";
import { tellTimes } from "./times.js";

tellTimes(document);
drawCharts(document);
setInterval(() => tellTimes(document), 1000);
addEventListener("resize", () => drawCharts(document));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(document));

addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

if (document.body.dataset.events) {
  follow(document.body.dataset.events, (changed) => {
    tellTimes(changed);
    drawCharts(changed);
  });
}
