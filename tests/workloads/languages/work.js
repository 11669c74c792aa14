// For each line on its input: objects and calls, ten times.
const called = (number) => ({ number }).number;
process.stdin.setEncoding("utf8");
let rest = "";
process.stdin.on("data", (text) => {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const _ of lines) {
        for (let number = 0; number < 10; number++) called(number);
        console.log("done");
    }
});
process.stdin.on("end", () => process.exit(7));
console.log("ready");
