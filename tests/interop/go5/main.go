// Command go5 drives the Go client of the 5.x protocol: it runs one command per JSON line of standard input, each in a
// goroutine of its own, and writes replies and events as JSON lines to standard output, until its input ends.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type arguments struct {
	Endpoints    string            `json:"endpoints"`
	User         string            `json:"user"`
	Secret       string            `json:"secret"`
	Name         string            `json:"name"`
	Producer     string            `json:"producer"`
	Consumer     string            `json:"consumer"`
	Topic        string            `json:"topic"`
	Topics       []string          `json:"topics"`
	Group        string            `json:"group"`
	CheckedAs    string            `json:"checked_as"`
	Body         string            `json:"body"`
	Tag          string            `json:"tag"`
	Keys         []string          `json:"keys"`
	MessageGroup string            `json:"message_group"`
	DeliverAtMs  int64             `json:"deliver_at_ms"`
	Properties   map[string]string `json:"properties"`
	Transaction  string            `json:"transaction"`
	Resolution   string            `json:"resolution"`
	Handle       string            `json:"handle"`
	Tags         string            `json:"tags"`
	SQL          string            `json:"sql"`
	AwaitS       int64             `json:"await_s"`
	Count        int32             `json:"count"`
	InvisibleS   int64             `json:"invisible_s"`
	View         int               `json:"view"`
	BusyMs       int64             `json:"busy_ms"`
	Failures     int32             `json:"failures"`
}

type request struct {
	Request   int       `json:"request"`
	Command   string    `json:"command"`
	Arguments arguments `json:"arguments"`
}

type reply = map[string]any

var commands = map[string]func(arguments) (reply, error){
	"start_producer":  startProducer,
	"send":            send,
	"end_transaction": endTransaction,
	"recall":          recall,
	"start_simple":    startSimple,
	"receive":         receive,
	"ack":             ack,
	"change":          change,
	"start_push":      startPush,
	"stop":            stop,
}

type client interface{ GracefulStop() error }

var (
	outMutex     sync.Mutex
	clientsMutex sync.Mutex
	clients      = map[string]client{}
)

func main() {
	// What it writes to standard output must be JSON lines alone; without this the client logs to a file.
	writeLine(reply{"event": "ready"})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, "not a command:", err)
			os.Exit(2)
		}
		go answer(asked)
	}
	os.Exit(stopAll())
}

func answer(asked request) {
	line := reply{"reply": asked.Request}
	command, known := commands[asked.Command]
	if !known {
		line["error"] = describeError(fmt.Errorf("no command %q", asked.Command))
	} else if result, err := command(asked.Arguments); err != nil {
		fmt.Fprintln(os.Stderr, asked.Command, "failed:", err)
		line["error"] = describeError(err)
	} else {
		line["result"] = result
	}
	writeLine(line)
}

func describeError(err error) reply {
	code := int32(-1)
	var status *rocketmq.ErrRpcStatus
	if errors.As(err, &status) {
		code = status.GetCode()
	}
	return reply{"type": fmt.Sprintf("%T", err), "code": code, "message": err.Error()}
}

func writeLine(value reply) {
	outMutex.Lock()
	defer outMutex.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		fmt.Fprintln(os.Stderr, "cannot write to standard output:", err)
		os.Exit(1)
	}
}

// The client's defaults: TLS, whose certificate it does not verify.
func configuration(asked arguments) *rocketmq.Config {
	return &rocketmq.Config{
		Endpoint:      asked.Endpoints,
		ConsumerGroup: asked.Group,
		Credentials:   &credentials.SessionCredentials{AccessKey: asked.User, AccessSecret: asked.Secret},
	}
}

func add(name string, added client) {
	clientsMutex.Lock()
	defer clientsMutex.Unlock()
	clients[name] = added
}

func find(name string) client {
	clientsMutex.Lock()
	defer clientsMutex.Unlock()
	return clients[name]
}

func stop(asked arguments) (reply, error) {
	clientsMutex.Lock()
	stopped := clients[asked.Name]
	delete(clients, asked.Name)
	clientsMutex.Unlock()
	return reply{}, stopped.GracefulStop()
}

func stopAll() int {
	clientsMutex.Lock()
	defer clientsMutex.Unlock()
	failures := make(chan error)
	for _, running := range clients {
		go func(stopped client) { failures <- stopped.GracefulStop() }(running)
	}
	status := 0
	for range clients {
		if err := <-failures; err != nil {
			fmt.Fprintln(os.Stderr, "cannot stop:", err)
			status = 1
		}
	}
	return status
}
