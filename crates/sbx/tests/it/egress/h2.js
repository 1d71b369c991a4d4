// HTTP/2 over TLS: node h2.js DIR
const fs = require('fs')
const http2 = require('http2')
const dir = process.argv[2]
const tls = { cert: fs.readFileSync(dir + '/origin.crt'), key: fs.readFileSync(dir + '/origin.key'), allowHTTP1: true }
http2.createSecureServer(tls, (request, response) => response.end('HTTP ' + request.httpVersion + '\n')).listen(8443, '::')
