// The charts of a run, drawn over tables of the same figures, from the JSON that `data-curves` of #charts names or is.
const box = document.getElementById('charts')
const drawn = new Map()

async function figures() {
  const source = box.dataset.curves
  return source.startsWith('{') ? JSON.parse(source) : (await fetch(source)).json()
}

function draw(data) {
  if (!data.at.length) return
  const [first, last] = [data.at[0], data.at.at(-1)]
  const style = getComputedStyle(box)
  const colour = name => style.getPropertyValue(name)
  const axis = { stroke: colour('--quiet'), grid: { stroke: colour('--pico-muted-border-color') } }
  const colours = [colour('--done'), colour('--waiting'), colour('--failed')]
  for (const plot of box.querySelectorAll('.plot')) {
    drawn.get(plot)?.destroy()
    const factor = Number(plot.dataset.factor)
    const lines = Object.entries(JSON.parse(plot.dataset.lines)).map(([name, label]) =>
      ({ label, values: data.lines[name].map(one => one === null ? null : one * factor) }))
    const options = {
      width: plot.clientWidth, height: 160, axes: [axis, { ...axis, size: 64 }],
      cursor: { drag: { x: false } },
      scales: { x: { range: () => [first - 60, Math.max(last, first + 240) + 60] }, y: { range: (_, __, most) => [0, most * 1.1 || 1] } },
      series: [{}, ...lines.map((line, i) => ({ label: line.label, stroke: colours[i], width: 1.5, dash: i ? [6, 3] : [] }))],
    }
    drawn.set(plot, new uPlot(options, [data.at, ...lines.map(line => line.values)], plot))
  }
}

let data = { at: [], lines: {} }
async function refresh() {
  data = await figures()
  draw(data)
}

if (box) {
  refresh()
  document.addEventListener('theme', () => draw(data))
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => draw(data))
  addEventListener('resize', () => draw(data))
  // while the run is at work its figures grow
  setInterval(() => { if (!document.hidden && document.querySelector('#figures .state.running')) refresh() }, 10_000)
}
