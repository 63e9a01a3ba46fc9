/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package routers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pipes is a listener of connections that are made by dial.
type pipes struct{ accept chan net.Conn }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.accept <- server
	return client
}

func (p *pipes) Accept() (net.Conn, error) {
	conn, open := <-p.accept
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p *pipes) Close() error {
	close(p.accept)
	return nil
}

func (p *pipes) Addr() net.Addr { return nil }

// isOpen says whether the other side has not closed a pipe.
func isOpen(client net.Conn) bool {
	if err := client.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return false
	}
	_, err := client.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

func TestConnections(t *testing.T) {
	p := &pipes{accept: make(chan net.Conn, 1)}
	left := 0
	l := newConnections(p, 3, func(netip.Addr) bool { return false }, func(net.Addr) { left++ })
	type pair struct {
		client net.Conn
		server *connection
	}
	take := func(client net.Conn) pair {
		conn, err := l.Accept()
		server, ok := conn.(*connection)
		if err != nil || !ok {
			panic(fmt.Sprintf("Accept() = %T, %v", conn, err))
		}
		return pair{client, server}
	}
	accept := func() pair { return take(p.dial()) }
	expectOpen := func(when string, pairs []pair, want ...bool) {
		t.Helper()
		got := []bool{}
		for _, p := range pairs {
			got = append(got, isOpen(p.client))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("open %s (-want +got):\n%s", when, diff)
		}
	}
	a, b, c := accept(), accept(), accept()
	a.server.authenticated()
	expectOpen("up to the limit", []pair{a, b, c}, true, true, true)
	d := accept()
	expectOpen("after one more", []pair{a, b, c, d}, true, false, true, true)
	// Counted out already; so what it does later changes nothing.
	b.server.authenticated()
	b.server.Close()
	b.server.Close()
	e := accept()
	expectOpen("after another", []pair{a, b, c, d, e}, true, false, false, true, true)
	if left != 2 {
		t.Errorf("%d gave way, want 2", left)
	}
	d.server.authenticated()
	e.server.authenticated()

	// With no stranger left a new one waits for a place.
	accepted := make(chan pair, 1)
	go func() { accepted <- accept() }()
	select {
	case <-accepted:
		t.Error("one more than the limit")
	case <-time.After(20 * time.Millisecond):
	}
	a.server.Close()
	f := receive(t, accepted, "the place that became free")
	f.server.authenticated()

	// It waits no more when the listener is closed: no other will come.
	last := p.dial()
	go func() { accepted <- take(last) }()
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	g := receive(t, accepted, "the last")
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() = %v after Close", err)
	}
	expectOpen("after the listener was closed", []pair{d, e, f, g}, true, true, true, true)

	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if l.drain(soon) {
		t.Error("drained with four connections open")
	}
	drained := make(chan bool, 1)
	go func() { drained <- l.drain(t.Context()) }()
	for _, p := range []pair{d, e, f, g} {
		p.server.Close()
	}
	if !receive(t, drained, "the connections to end") {
		t.Error("not drained with no connection open")
	}
}

// from is a connection of a source.
type from struct {
	net.Conn
	source string
}

func (c from) RemoteAddr() net.Addr { return address(c.source + ":1") }

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// TestConnectionsOfManySources: of too many connections one of the source with most of
// them gives way, and one of a source that has authenticated last.
func TestConnectionsOfManySources(t *testing.T) {
	p := &pipes{accept: make(chan net.Conn, 1)}
	var left []string
	isKnown := func(source netip.Addr) bool { return source == sourceOf("192.0.2.9:1") }
	l := newConnections(p, 4, isKnown, func(remote net.Addr) { left = append(left, remote.String()) })
	accept := func(source string) {
		client, server := net.Pipe()
		t.Cleanup(func() { client.Close() })
		p.accept <- from{server, source}
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{"192.0.2.9", "192.0.2.9", "192.0.2.9", "192.0.2.1"} {
		accept(source)
	}
	accept("192.0.2.2") // in place of that of .1: those of .9 are known
	accept("192.0.2.9") // in place of that of .2
	accept("192.0.2.3") // only known ones are left
	accept("192.0.2.4")
	if diff := cmp.Diff([]string{"192.0.2.1:1", "192.0.2.2:1", "192.0.2.9:1", "192.0.2.3:1"}, left); diff != "" {
		t.Errorf("gave way (-want +got):\n%s", diff)
	}
}
