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

package options

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
)

// TestSummary checks the requests that the first log line names.
func TestSummary(t *testing.T) {
	const url, token = "http://altershield:8080", "/etc/altershield/token"
	for name, test := range map[string]struct {
		options                  Options
		wantServer, wantRequests string
	}{
		"stand-alone": {
			Options{CallbackAddress: ":8080"}, "none: stand-alone", "liveTest only: without --altershield-token-file all others are refused",
		},
		"stand-alone with a token": {
			Options{CallbackAddress: ":8080", CallbackPut: true, TokenFile: token}, "none: stand-alone", "suspend list and rollback, signed",
		},
		"no rollbacks over HTTP": {
			Options{CallbackAddress: ":8080", TokenFile: token}, "none: stand-alone", "suspend list, signed; no rollback: --callback-put is false",
		},
		"a server": {
			Options{CallbackAddress: ":8080", CallbackPut: true, TokenFile: token, ServerURL: url}, url,
			"callbacks, suspend list and rollback, signed",
		},
		"a server, without a token": {
			Options{CallbackAddress: ":8080", ServerURL: url}, url, "liveTest only: without --altershield-token-file all others are refused",
		},
		"turned off": {Options{CallbackAddress: "0", TokenFile: token, ServerURL: url}, url, "none: --callback-bind-address is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			test.options.Namespace = "ours"
			want := []any{"namespace", "ours", "server", test.wantServer, "requests", test.wantRequests}
			if diff := cmp.Diff(want, test.options.Summary()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParse(t *testing.T) {
	certs := t.TempDir()
	for _, name := range []string{"tls.crt", "tls.key", "other.crt"} {
		if err := os.WriteFile(filepath.Join(certs, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	token, short := filepath.Join(certs, "token"), filepath.Join(certs, "short")
	if err := errors.Join(
		os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600), os.WriteFile(short, []byte("0123456789abcde"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args         []string
		podNamespace string
		wantErr      []string // parts of the error
		check        func(*Options) bool
	}{
		"defaults": {check: func(o *Options) bool {
			return o.Namespace == "altershieldoperator-system" && !o.LeaderElect && o.HealthAddress == ":8081" && o.WebhookPort == 9443 &&
				o.MetricsAddress == "0" && o.MetricsByNamespace
		}},
		"holding, defaults": {check: func(o *Options) bool { return o.HoldStep == 10*time.Minute && o.HoldGuard == time.Minute }},
		"holding shortly": {args: []string{"--hold-step=1s", "--hold-guard=100ms"}, check: func(o *Options) bool {
			return o.HoldStep == time.Second && o.HoldGuard == 100*time.Millisecond
		}},
		"holding long": {args: []string{"--hold-step=1h", "--hold-guard=1h"}, check: func(o *Options) bool {
			return o.HoldStep == time.Hour && o.HoldGuard == time.Hour
		}},
		"hold step too short": {
			args: []string{"--hold-step=999ms", "--hold-guard=100ms"}, wantErr: []string{"--hold-step 999ms", "from 1s to 1h0m0s"},
		},
		"hold step too long":     {args: []string{"--hold-step=61m"}, wantErr: []string{"--hold-step 1h1m0s", "from 1s to 1h0m0s"}},
		"hold guard too short":   {args: []string{"--hold-guard=99ms"}, wantErr: []string{"--hold-guard 99ms", "from 100ms"}},
		"hold guard over a step": {args: []string{"--hold-step=30s"}, wantErr: []string{"--hold-guard 1m0s", "--hold-step, 30s"}},
		"hold step without unit": {args: []string{"--hold-step=600"}, wantErr: []string{"hold-step", "600"}},
		"namespace of the pod": {podNamespace: "ours", check: func(o *Options) bool {
			return o.Namespace == "ours" && o.Pod.Namespace == "ours" && o.Pod.Name == "manager-1"
		}},
		"flag before pod": {
			args: []string{"--namespace=mine"}, podNamespace: "ours", check: func(o *Options) bool { return o.Namespace == "mine" },
		},
		"leader election":  {args: []string{"--leader-elect"}, check: func(o *Options) bool { return o.LeaderElect }},
		"metrics together": {args: []string{"--metrics-by-namespace=false"}, check: func(o *Options) bool { return !o.MetricsByNamespace }},
		"no networks":      {check: func(o *Options) bool { return len(o.DenyCIDRs) == 0 }},
		"networks": {args: []string{"--deny-cidrs=10.1.2.3/8, fd00::/8"}, check: func(o *Options) bool {
			return fmt.Sprint(o.DenyCIDRs) == "[10.0.0.0/8 fd00::/8]"
		}},
		"an address is no network": {
			args: []string{"--deny-cidrs=10.0.0.0/8,10.1.2.3"}, wantErr: []string{"-deny-cidrs", "10.1.2.3", "length of its prefix"},
		},
		"no queries for metrics": {check: func(o *Options) bool { return o.MetricsEndpoint == "" && len(o.MetricsFrom) == 0 }},
		"queries for metrics": {
			args: []string{"--altershield-metrics-endpoint=prom", "--altershield-metrics-from=192.0.2.10/32,2001:db8::/64"},
			check: func(o *Options) bool {
				return o.MetricsEndpoint == "prom" && fmt.Sprint(o.MetricsFrom, o.DenyCIDRs) == "[192.0.2.10/32 2001:db8::/64] []"
			},
		},
		"queries from nowhere": {
			args: []string{"--altershield-metrics-endpoint=prom"}, wantErr: []string{"--altershield-metrics-from: give both, or neither"},
		},
		"queries without an endpoint": {
			args: []string{"--altershield-metrics-from=192.0.2.10/32"}, wantErr: []string{"--altershield-metrics-endpoint", "give both"},
		},
		"queries from no network": {
			args: []string{"--altershield-metrics-from=altershield"}, wantErr: []string{"altershield-metrics-from", "is not a network"},
		},
		"queries to a URL": {
			args:    []string{"--altershield-metrics-endpoint=http://prom", "--altershield-metrics-from=192.0.2.10/32"},
			wantErr: []string{"--altershield-metrics-endpoint", "is not the name of an object"},
		},
		"other certificate": {
			args: []string{"--webhook-cert-name=other.crt"}, check: func(o *Options) bool { return o.Certificates.CertName == "other.crt" },
		},
		"no such certificate": {args: []string{"--webhook-cert-name=none.crt"}, wantErr: []string{"--webhook-cert-name", "none.crt"}},
		"no such directory":   {args: []string{"--webhook-cert-path=/none"}, wantErr: []string{"--webhook-cert-path", "/none"}},
		"certificates of our own": {args: []string{"--webhook-cert-path="}, check: func(o *Options) bool {
			return o.Certificates.Secret == "altershieldoperator-webhook-server-cert" &&
				o.Certificates.Service == "altershieldoperator-webhook-service" &&
				o.Certificates.Mutating == "altershieldoperator-mutating-webhook-configuration" &&
				o.Certificates.Validating == "altershieldoperator-validating-webhook-configuration" && o.Certificates.Validity == 2160*time.Hour
		}},
		"other configurations": {args: []string{"--webhook-cert-path=", "--webhook-configurations=a,b"}, check: func(o *Options) bool {
			return o.Certificates.Mutating == "a" && o.Certificates.Validating == "b"
		}},
		"one configuration": {
			args: []string{"--webhook-cert-path=", "--webhook-configurations=a"}, wantErr: []string{"--webhook-configurations"},
		},
		"three configurations": {
			args: []string{"--webhook-cert-path=", "--webhook-configurations=a,b,c"}, wantErr: []string{"--webhook-configurations", "b,c"},
		},
		"secret no name": {
			args: []string{"--webhook-cert-path=", "--webhook-cert-secret=A"}, wantErr: []string{"--webhook-cert-secret", "A"},
		},
		"service no name": {
			args: []string{"--webhook-cert-path=", "--webhook-service=a.b"}, wantErr: []string{"--webhook-service", "a.b"},
		},
		"certificates too short": {
			args: []string{"--webhook-cert-path=", "--webhook-cert-validity=9s"}, wantErr: []string{"--webhook-cert-validity", "10s"},
		},
		"names with files": {args: []string{"--webhook-configurations=a"}, wantErr: []string{"--webhook-configurations"}},
		"validity with files does not matter": {args: []string{"--webhook-cert-validity=0"}, check: func(o *Options) bool {
			return o.Certificates.Dir != ""
		}},
		"namespace no name":  {args: []string{"--namespace=Not Valid"}, wantErr: []string{"--namespace", "Not Valid"}},
		"port no port":       {args: []string{"--webhook-port=70000"}, wantErr: []string{"--webhook-port", "70000"}},
		"address no address": {args: []string{"--health-probe-bind-address=8081"}, wantErr: []string{"--health-probe-bind-address", "host:port"}},
		"metrics no address": {args: []string{"--metrics-bind-address=x"}, wantErr: []string{"--metrics-bind-address"}},
		"argument":           {args: []string{"start"}, wantErr: []string{`"start"`, "--help"}},
		"unknown flag":       {args: []string{"--leader-elected"}, wantErr: []string{"leader-elected"}},
		"server, defaults": {
			args: []string{"--altershield-url=http://altershield:8080", "--altershield-token-file=" + token},
			check: func(o *Options) bool {
				return o.Tokens(logr.Discard()) != nil && o.Platform == "kubernetes" &&
					o.Scene == "com.alipay.altershield.kubernetes.rollingupdate" && o.AdmissionScene == "" &&
					o.Tenant == "default" && o.Phase == "prod_phase" && o.TargetType == "paas.pod" && o.CallbackAddress == ":8080"
			},
		},
		"no server": {check: func(o *Options) bool { return o.ServerURL == "" && o.Tokens(logr.Discard()) == nil }},
		"token, stand-alone": {
			args:  []string{"--altershield-token-file=" + token},
			check: func(o *Options) bool { return o.ServerURL == "" && o.Tokens(logr.Discard()) != nil },
		},
		"callbacks off": {args: []string{"--callback-bind-address=0"}, check: func(o *Options) bool { return o.CallbackAddress == "0" }},
		"callbacks with TLS": {
			args: []string{"--callback-cert-path=" + certs}, check: func(o *Options) bool { return o.CallbackCertPath == certs },
		},
		"callback address":      {args: []string{"--callback-bind-address=8080"}, wantErr: []string{"--callback-bind-address", "host:port"}},
		"callback certificate":  {args: []string{"--callback-cert-path=/none"}, wantErr: []string{"--callback-cert-path", "tls.crt"}},
		"server without scheme": {args: []string{"--altershield-url=altershield:8080"}, wantErr: []string{"--altershield-url", "http"}},
		"server with password":  {args: []string{"--altershield-url=http://a:b@altershield"}, wantErr: []string{"--altershield-url", "user"}},
		"no such token":         {args: []string{"--altershield-token-file=/none"}, wantErr: []string{"--altershield-token-file", "/none"}},
		"token too short": {
			args: []string{"--altershield-token-file=" + short}, wantErr: []string{"--altershield-token-file", "at least 16"},
		},
		"phase that is none": {
			args: []string{"--altershield-url=http://a", "--altershield-phase=prod"}, wantErr: []string{"--altershield-phase", "prod_phase"},
		},
		"platform too long": {
			args:    []string{"--altershield-url=http://a", "--altershield-platform=" + strings.Repeat("x", 33)},
			wantErr: []string{"--altershield-platform"},
		},
		"scene empty": {
			args: []string{"--altershield-url=http://a", "--altershield-scene="}, wantErr: []string{"--altershield-scene", "registered"},
		},
		"admission scene, long": {
			args:    []string{"--altershield-url=http://a", "--altershield-admission-scene=" + strings.Repeat("x", 257)},
			wantErr: []string{"--altershield-admission-scene", "256"},
		},
		"version needs nothing": {args: []string{"--version", "--webhook-cert-path=/none"}, check: func(o *Options) bool {
			return o.PrintVersion
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", test.podNamespace)
			t.Setenv("POD_NAME", "manager-1")
			o, err := Parse(append([]string{"--webhook-cert-path=" + certs}, test.args...))
			if len(test.wantErr) > 0 {
				if err == nil {
					t.Fatalf("no error, want one that names %q", test.wantErr)
				}
				for _, want := range test.wantErr {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q does not name %q", err, want)
					}
				}
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("error is more than a line: %q", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !test.check(o) {
				t.Errorf("options are %+v", o)
			}
		})
	}
}
