// Answers each POST with its path and the body turned round. Says "ready PORT"; ends at SIGTERM.
"use strict";
const http = require("http");

const server = http.createServer((request, answer) => {
    const parts = [];
    request.on("data", part => parts.push(part));
    request.on("end", () => answer.end(Buffer.concat([Buffer.from(request.url), Buffer.concat(parts).reverse()])));
});
// A client that a debugger has held up is no idle one.
server.keepAliveTimeout = 0;
server.requestTimeout = 0;
server.headersTimeout = 0;
server.listen(0, "127.0.0.1", () => console.log("ready " + server.address().port));
process.on("SIGTERM", () => process.exit(0));
