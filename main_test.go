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

package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

const actsAsManager = "TEST_ACTS_AS_MANAGER"

func TestMain(m *testing.M) {
	if os.Getenv(actsAsManager) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestFirstLine checks the log of a manager that cannot start. The first line names the
// version and the settings, all lines are JSON except the last, and the last says why the
// manager ended.
func TestFirstLine(t *testing.T) {
	manager := exec.CommandContext(t.Context(), os.Args[0], "--webhook-cert-path=", "--namespace=ours")
	manager.Env = append(os.Environ(), actsAsManager+"=1", "KUBECONFIG="+filepath.Join(t.TempDir(), "none"))
	out, err := manager.CombinedOutput()
	if err == nil {
		t.Fatalf("the manager started without a cluster:\n%s", out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var first struct{ Msg, Version, Commit, Namespace, Server, Requests string }
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatalf("the first line is not JSON:\n%s", out)
	}
	if first.Msg != "starting" || first.Version != version || first.Commit != commit ||
		first.Namespace != "ours" || first.Server == "" || first.Requests == "" {
		t.Errorf("the first line is %s", lines[0])
	}
	for _, line := range lines[:len(lines)-1] {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "altershield-operator: ") {
		t.Errorf("the last line is %q", last)
	}
}

// TestLogOfServers: a server without a logger of its own writes a failed TLS handshake to
// the log of the manager.
func TestLogOfServers(t *testing.T) {
	before, output, flags := slog.Default(), log.Writer(), log.Flags()
	t.Cleanup(func() { slog.SetDefault(before); log.SetOutput(output); log.SetFlags(flags) })
	read, write := io.Pipe()
	logTo(zap.New(zap.WriteTo(write)))

	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	lines := make(chan string, 1)
	go func() {
		buffer := make([]byte, 64<<10)
		n, _ := read.Read(buffer)
		lines <- string(bytes.TrimSpace(buffer[:n]))
		_, _ = io.Copy(io.Discard, read)
	}()
	dialer := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12}} // does not trust the certificate
	if _, err := dialer.DialContext(t.Context(), "tcp", server.Listener.Addr().String()); err == nil {
		t.Fatal("the handshake succeeded")
	}
	select {
	case line := <-lines:
		var said struct{ Level, Logger, Msg string }
		const want = "http: TLS handshake error from 127.0.0.1:"
		if err := json.Unmarshal([]byte(line), &said); err != nil ||
			said.Level != "info" || said.Logger != "http" || !strings.HasPrefix(said.Msg, want) {
			t.Errorf("%v: %s", err, line)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was logged")
	}
}
