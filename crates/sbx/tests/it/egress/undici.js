// A host that is allowed and one that is not, by the package itself: it is told of the proxy as its users tell it.
const { Agent, ProxyAgent, request } = require('undici')
const proxy = process.env.https_proxy
const dispatcher = proxy ? new ProxyAgent(proxy) : new Agent()
const get = async (url) => {
  const { statusCode, body } = await request(url, { dispatcher })
  const text = await body.text()
  return statusCode === 200 ? text.trim() : statusCode
}
const unreachable = (error) => {
  console.error(error)
  return 'unreachable'
}
;(async () => {
  for (const host of ['origin.test', 'other.test']) {
    for (const scheme of ['http', 'https']) {
      console.log(scheme, await get(`${scheme}://${host}/hello`).catch(unreachable))
    }
  }
  await dispatcher.destroy()
})()
