// Decisions by keyboard, and what an edit changes while it is typed. The page works without it.
const form = document.getElementById('decide')

// The keys are those that the buttons and links of this row say. What needs a reason asks for it first.
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return
  if (event.target.closest('input, textarea, select')) {
    if (event.key === 'Escape') event.target.blur()
    if (event.key === 'Enter' && event.target.name === 'reason' && form.dataset.chosen)
      form.requestSubmit(document.querySelector(`button[form=decide][value="${form.dataset.chosen}"]`))
    return
  }
  const key = event.key === 'n' ? 'j' : event.key
  const chosen = [...document.querySelectorAll('[aria-keyshortcuts]')].find(one => one.getAttribute('aria-keyshortcuts') === key)
  if (!chosen) return
  event.preventDefault()  // the key itself is not typed into a field
  if (chosen.value === 'edit') form.querySelector('[data-before]').focus()
  else if (chosen.value && chosen.value !== 'approve') {
    form.dataset.chosen = chosen.value  // Enter in the reason then sends it
    form.elements.reason.focus()
  } else chosen.click()
})

// What an edit changes, word by word: of equal words the longest chain is kept.
form?.addEventListener('input', () => {
  const shown = document.getElementById('difference')
  shown.replaceChildren()
  for (const part of form.querySelectorAll('[data-before]')) {
    if (part.value === part.dataset.before) continue
    const line = document.createElement('p')
    line.append(part.name.slice(5) + ' ')
    for (const [tag, text] of difference(words(part.dataset.before), words(part.value))) {
      const piece = tag ? document.createElement(tag) : document.createTextNode(text)
      if (tag) piece.textContent = text
      line.append(piece)
    }
    shown.append(line)
  }
})

function words(text) {
  return text.match(/\s+|[^\s]+/g)?.slice(0, 1000) ?? []
}

function difference(old, now) {
  const best = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1))
  for (let i = old.length - 1; i >= 0; i--)
    for (let j = now.length - 1; j >= 0; j--)
      best[i][j] = old[i] === now[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1])
  const found = []
  for (let i = 0, j = 0; i < old.length || j < now.length;) {
    if (i < old.length && j < now.length && old[i] === now[j]) found.push(['', (j++, old[i++])])
    else if (j < now.length && (i === old.length || best[i][j + 1] >= best[i + 1][j])) found.push(['ins', now[j++]])
    else found.push(['del', old[i++]])
  }
  return found
}
