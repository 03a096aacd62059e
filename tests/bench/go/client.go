// A client of the 5.x protocol: one connection with its Telemetry stream and heartbeats, as official clients have.
package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	callTimeout    = 20 * time.Second
	requestTimeout = 3 * time.Second
	heartbeatEvery = 10 * time.Second
)

type client struct {
	connection *grpc.ClientConn
	service    v2.MessagingServiceClient
	id         string
	kind       v2.ClientType
	group      *v2.Resource // nil for producers
	end        context.CancelFunc
	telemetry  v2.MessagingService_TelemetryClient
}

var clientNumber atomic.Int64

// connect opens a connection, reports settings on its Telemetry stream and waits for the reply.
func connect(address string, useTLS bool, topic, group string) (*client, error) {
	security := insecure.NewCredentials()
	if useTLS {
		security = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20)))
	if err != nil {
		return nil, err
	}
	c := &client{connection: connection, service: v2.NewMessagingServiceClient(connection), kind: v2.ClientType_PRODUCER}
	c.id = fmt.Sprintf("bench@%d@%d@load", os.Getpid(), clientNumber.Add(1))
	settings, err := c.settings(address, topic, group)
	if err != nil {
		return nil, err
	}
	alive, end := context.WithCancel(context.Background())
	c.end = end
	if err := c.report(alive, settings); err != nil {
		end()
		connection.Close()
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	go c.beat(alive)
	return c, nil
}

func (c *client) settings(address, topic, group string) (*v2.Settings, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, err
	}
	settings := &v2.Settings{
		AccessPoint:    endpoints(host, port),
		RequestTimeout: durationpb.New(requestTimeout),
		UserAgent:      &v2.UA{Language: v2.Language_GOLANG, Version: "5.1.4", Platform: "linux", Hostname: "bench"},
	}
	if group == "" {
		settings.PubSub = &v2.Settings_Publishing{Publishing: &v2.Publishing{
			Topics: []*v2.Resource{{Name: topic}}, MaxBodySize: 4 << 20, ValidateMessageType: true}}
	} else {
		c.kind, c.group = v2.ClientType_SIMPLE_CONSUMER, &v2.Resource{Name: group}
		settings.PubSub = &v2.Settings_Subscription{Subscription: &v2.Subscription{
			Group: c.group, Subscriptions: []*v2.SubscriptionEntry{{Topic: &v2.Resource{Name: topic}, Expression: everything}}}}
	}
	settings.ClientType = c.kind.Enum()
	return settings, nil
}

var everything = &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"}

func endpoints(host string, port int) *v2.Endpoints {
	return &v2.Endpoints{Scheme: v2.AddressScheme_IPv4, Addresses: []*v2.Address{{Host: host, Port: int32(port)}}}
}

func (c *client) report(alive context.Context, settings *v2.Settings) error {
	stream, err := c.service.Telemetry(c.labelled(alive))
	if err != nil {
		return err
	}
	c.telemetry = stream
	if err := stream.Send(&v2.TelemetryCommand{Command: &v2.TelemetryCommand_Settings{Settings: settings}}); err != nil {
		return err
	}
	answered := make(chan error, 1)
	go func() {
		for first := true; ; first = false {
			command, err := stream.Recv()
			if first && err == nil && command.GetSettings() == nil {
				err = fmt.Errorf("the first command is not settings: %v", command)
			}
			if first {
				answered <- err
			}
			if err != nil {
				return
			}
		}
	}()
	select {
	case err := <-answered:
		return err
	case <-time.After(callTimeout):
		return fmt.Errorf("no settings within %v", callTimeout)
	}
}

func (c *client) beat(alive context.Context) {
	for {
		call, cancel := context.WithTimeout(c.labelled(alive), callTimeout)
		_, err := c.service.Heartbeat(call, &v2.HeartbeatRequest{Group: c.group, ClientType: c.kind})
		cancel()
		if err != nil && alive.Err() == nil {
			fmt.Fprintln(os.Stderr, "heartbeat:", err)
		}
		select {
		case <-alive.Done():
			return
		case <-time.After(heartbeatEvery):
		}
	}
}

func (c *client) close() {
	call, cancel := context.WithTimeout(c.labelled(context.Background()), requestTimeout)
	defer cancel()
	_, _ = c.service.NotifyClientTermination(call, &v2.NotifyClientTerminationRequest{Group: c.group})
	_ = c.telemetry.CloseSend()
	c.end()
	c.connection.Close()
}

// labelled adds the metadata that official clients send with every call, with a new request id.
func (c *client) labelled(parent context.Context) context.Context {
	a, b := mathrand.Uint64(), mathrand.Uint64()
	request := fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", uint32(a>>32), uint16(a>>16), a&0xfff, b>>52, b&(1<<48-1))
	return metadata.AppendToOutgoingContext(parent,
		"x-mq-language", "GO", "x-mq-protocol", "v2", "x-mq-client-version", "5.1.4", "x-mq-request-id", request,
		"x-mq-client-id", c.id, "x-mq-date-time", time.Now().UTC().Format("20060102T150405Z"), "x-mq-namespace", "")
}

// brokerOf asks for the route of a topic and returns the name of its first broker, which receives need.
func (c *client) brokerOf(address, topic string) (*v2.Broker, error) {
	call, cancel := context.WithTimeout(c.labelled(context.Background()), callTimeout)
	defer cancel()
	host, portText, _ := net.SplitHostPort(address)
	port, _ := strconv.Atoi(portText)
	request := &v2.QueryRouteRequest{Topic: &v2.Resource{Name: topic}, Endpoints: endpoints(host, port)}
	reply, err := c.service.QueryRoute(call, request)
	if err != nil {
		return nil, err
	}
	if err := problem(reply.GetStatus()); err != nil || len(reply.GetMessageQueues()) == 0 {
		return nil, fmt.Errorf("no route of %s: %w", topic, err)
	}
	return reply.GetMessageQueues()[0].GetBroker(), nil
}

func problem(status *v2.Status) error {
	if status.GetCode() == v2.Code_OK {
		return nil
	}
	return fmt.Errorf("%v %s", status.GetCode(), status.GetMessage())
}

// connectAll opens the clients of one command.
func connectAll(given arguments, groups ...string) ([]*client, error) {
	var clients []*client
	for i := range given.Connections {
		group := ""
		if len(groups) > 0 {
			group = groups[i%len(groups)]
		}
		c, err := connect(given.Address, given.TLS, given.Topic, group)
		if err != nil {
			closeAll(clients)
			return nil, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

func closeAll(clients []*client) {
	var closing workers
	for _, c := range clients {
		closing.start(c.close)
	}
	closing.wait()
}

var idPrefix = func() []byte {
	prefix := make([]byte, 13)
	_, _ = rand.Read(prefix)
	prefix[0] = 1
	return prefix
}()
var idNumber atomic.Uint32

// newMessageID returns a new id in the form of official clients: 17 bytes in hexadecimal.
func newMessageID() string {
	id := binary.BigEndian.AppendUint32(append(make([]byte, 0, 17), idPrefix...), idNumber.Add(1))
	return fmt.Sprintf("%X", id)
}
