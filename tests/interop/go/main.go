// Command interop drives the Go client: it runs one command per JSON line of standard input, and writes replies and
// events as JSON lines to standard output, until its input ends.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type arguments struct {
	Namesrv      string            `json:"namesrv"`
	Topic        string            `json:"topic"`
	Group        string            `json:"group"`
	Name         string            `json:"name"`
	Mode         string            `json:"mode"`
	Count        int               `json:"count"`
	First        int               `json:"first"`
	Prefix       string            `json:"prefix"`
	SizeBytes    int               `json:"size_bytes"`
	Tags         []string          `json:"tags"`
	Keys         string            `json:"keys"`
	Properties   map[string]string `json:"properties"`
	Expression   string            `json:"expression"`
	Broadcasting bool              `json:"broadcasting"`
	Orderly      bool              `json:"orderly"`
}

type request struct {
	Request   int       `json:"request"`
	Command   string    `json:"command"`
	Arguments arguments `json:"arguments"`
}

var commands = map[string]func(arguments) (any, error){
	"send":           send,
	"start_consumer": startConsumer,
	"stop_consumer":  stopConsumer,
}

var outMutex sync.Mutex

func writeLine(value any) {
	outMutex.Lock()
	defer outMutex.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		fmt.Fprintln(os.Stderr, "cannot write to standard output:", err)
		os.Exit(1)
	}
}

func main() {
	rlog.SetLogLevel("warn")
	writeLine(map[string]any{"event": "ready"})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, "not a command:", err)
			os.Exit(2)
		}
		reply := map[string]any{"reply": asked.Request}
		result, err := run(asked)
		if err != nil {
			reply["error"] = map[string]any{"type": fmt.Sprintf("%T", err), "code": -1, "message": err.Error()}
		} else {
			reply["result"] = result
		}
		writeLine(reply)
	}
	if err := stopAll(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot stop:", err)
		os.Exit(1)
	}
}

func run(asked request) (any, error) {
	command, known := commands[asked.Command]
	if !known {
		return nil, fmt.Errorf("no command %q", asked.Command)
	}
	return command(asked.Arguments)
}
