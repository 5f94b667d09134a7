// The switch of light and dark, and buttons that copy a command. Pages work without it.
const root = document.documentElement
const dark = matchMedia('(prefers-color-scheme: dark)')
const stored = localStorage.getItem('theme')
if (stored) root.dataset.theme = stored

document.addEventListener('click', async event => {
  const button = event.target.closest('button')
  if (button?.matches('[data-switch-theme]')) {
    const now = root.dataset.theme ?? (dark.matches ? 'dark' : 'light')
    root.dataset.theme = now === 'dark' ? 'light' : 'dark'
    localStorage.setItem('theme', root.dataset.theme)
    document.dispatchEvent(new Event('theme'))
  } else if (button?.matches('[data-copy]')) {
    await navigator.clipboard.writeText(button.dataset.copy)
    say('Copied: ' + button.dataset.copy)
  }
})

// One line a page for people who hear it.
function say(text) {
  document.getElementById('said').textContent = text
}
