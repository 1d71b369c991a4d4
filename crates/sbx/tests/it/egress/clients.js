// A host that is allowed and one that is not, by `fetch` and by the modules below it.
const clients = {
  fetch: async (url) => {
    const answer = await fetch(url)
    return answer.ok ? (await answer.text()).trim() : answer.status
  },
  raw: (url) => new Promise((resolve, reject) => {
    const get = require(url.startsWith('https') ? 'https' : 'http').get
    get(url, { timeout: 30000 }, (answer) => {
      let text = ''
      answer.setEncoding('utf8')
      answer.on('data', (piece) => { text += piece })
      answer.on('end', () => resolve(answer.statusCode === 200 ? text.trim() : answer.statusCode))
    }).on('error', reject)
  })
}
;(async () => {
  for (const host of ['origin.test', 'other.test']) {
    for (const [name, get] of Object.entries(clients)) {
      for (const scheme of ['http', 'https']) {
        console.log(name, scheme, await get(`${scheme}://${host}/hello`).catch(() => 'unreachable'))
      }
    }
  }
})()
