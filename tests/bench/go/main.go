// Load for the gRPC and POP benchmarks: one command per JSON line of standard input, one reply per line of standard
// output, until the input ends. One process loads all servers in turn, with the same code.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

type object = map[string]any

// arguments of all commands. Each command uses some of them; the others are zero.
type arguments struct {
	Address     string   // of the proxy
	TLS         bool     `json:"tls"`
	Broker      string   // address for remoting
	Namesrv     string   // address for remoting
	BrokerName  string   `json:"broker_name"`
	Topic       string   //
	MessageType string   `json:"message_type"`
	Queues      int      //
	Group       string   //
	Groups      []string //
	Size        int      // bytes per body
	Batch       int      // messages per receive, pull or pop
	Connections int      //
	Callers     int      // concurrent calls, or receivers, per connection
	Senders     int      // concurrent sends per connection in delay
	Count       int      //
	Seconds     float64  // limits the sends if above 0
	Rate        float64  // sends per second, 0 for as fast as possible
	FromMs      int64    `json:"from_ms"`
	OverMs      int64    `json:"over_ms"`
	PollS       float64  `json:"poll_s"`
	InvisibleS  float64  `json:"invisible_s"`
	TimeoutS    float64  `json:"timeout_s"`
	Ack         string   // how popped messages are acknowledged: "one" by one, or in a "batch"
}

var commands = map[string]func(arguments) (object, error){
	"prepare":      prepare,
	"send":         send,
	"receive":      receive,
	"delay":        delay,
	"wait-connect": waitConnect,
	"wait-open":    waitOpen,
	"wait-close":   waitClose,
	"pull":         pull,
	"pop":          pop,
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	write(out, object{"event": "ready"})
	for lines.Scan() {
		var request struct {
			Request   int
			Command   string
			Arguments arguments
		}
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		reply := object{"reply": request.Request}
		if result, err := run(request.Command, request.Arguments); err != nil {
			reply["error"] = object{"type": "error", "code": -1, "message": err.Error()}
		} else {
			reply["result"] = result
		}
		write(out, reply)
	}
}

func run(name string, given arguments) (object, error) {
	command, known := commands[name]
	if !known {
		return nil, fmt.Errorf("unknown command %q", name)
	}
	return command(given)
}

func write(out *json.Encoder, value object) {
	if err := out.Encode(value); err != nil {
		os.Exit(1)
	}
}
