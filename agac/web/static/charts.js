// The charts of a run, drawn over tables of the same figures, from the JSON that `data-curves` of #charts names or is.
const box = document.getElementById('charts')
const drawn = new Map()

async function figures() {
  const source = box.dataset.curves
  return source.startsWith('{') ? JSON.parse(source) : (await fetch(source)).json()
}

// Times as everywhere: UTC, 24 hours; the first one and each midnight with the day.
const iso = seconds => new Date(1000 * seconds).toISOString()
function clock(_, splits) {
  const end = splits[1] - splits[0] < 60 ? 19 : 16
  return splits.map((one, i) => iso(one).slice(11, end) + (i === 0 || one % 86400 === 0 ? '\n' + iso(one).slice(0, 10) : ''))
}

// Times with the places of their figures: between those far apart one without any, where lines are broken.
function moments(at, step) {
  return at.flatMap((one, i) => i && one - at[i - 1] > 3 * step ? [[at[i - 1] + step, -1], [one, i]] : [[one, i]])
}

function draw(data) {
  const style = getComputedStyle(box)
  const colour = name => style.getPropertyValue(name)
  const axis = { stroke: colour('--quiet'), grid: { stroke: colour('--pico-muted-border-color') } }
  const colours = [colour('--done'), colour('--waiting'), colour('--failed')]
  for (const chart of drawn.values()) chart.destroy()
  drawn.clear()
  for (const plot of box.querySelectorAll('.plot')) {
    const own = plot.dataset.more ? data.more[plot.dataset.more] : data
    plot.hidden = !own?.at.length
    if (plot.hidden) continue
    const [first, last, step] = [own.at[0], own.at.at(-1), own.step_s]
    const factor = Number(plot.dataset.factor)
    const shown = moments(own.at, step)
    const lines = JSON.parse(plot.dataset.lines).map(([name, label]) =>
      ({ label, values: shown.map(([, i]) => own.lines[name][i] ?? null).map(one => one === null ? null : one * factor) }))
    const options = {
      width: plot.clientWidth, height: 160, axes: [{ ...axis, values: clock, space: 64 }, { ...axis, size: 64 }], tzDate: seconds => uPlot.tzDate(new Date(1000 * seconds), 'Etc/UTC'),
      cursor: { drag: { x: false } },
      scales: { x: { range: () => [first - step, Math.max(last, first + 4 * step) + step] }, y: { range: (_, __, most) => [0, most * 1.1 || 1] } },
      series: [{ label: 'Time', value: (_, at) => at === null ? '--' : iso(at).slice(0, 19) + 'Z' }, ...lines.map((line, i) => ({ label: line.label, stroke: colours[i], width: 1.5, dash: [[], [6, 3], [2, 3]][i] }))],
    }
    drawn.set(plot, new uPlot(options, [shown.map(([at]) => at), ...lines.map(line => line.values)], plot))
  }
}

let data = { at: [], lines: {}, more: {} }
async function refresh() {
  data = await figures()
  const shown = [...box.querySelectorAll('.plot')].map(plot => plot.dataset.more)
  if (Object.keys(data.more).some(title => !shown.includes(title))) {  // a lane that began since: the page has its chart
    const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), 'text/html')
    box.replaceChildren(...page.getElementById('charts').childNodes)
  }
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
