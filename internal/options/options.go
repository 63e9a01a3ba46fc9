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

// Package options holds the flags of the manager.
package options

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

const (
	defaultNamespace      = "altershieldoperator-system"
	defaultCertSecret     = "altershieldoperator-webhook-server-cert"
	defaultService        = "altershieldoperator-webhook-service"
	defaultConfigurations = "altershieldoperator-mutating-webhook-configuration,altershieldoperator-validating-webhook-configuration"
	defaultCertValidity   = 90 * 24 * time.Hour
	// minCertValidity leaves a slow replica some seconds to renew a certificate.
	minCertValidity = 10 * time.Second
	// Values and limits of --hold-step and --hold-guard.
	defaultHoldStep  = 10 * time.Minute
	minHoldStep      = time.Second
	maxHoldStep      = time.Hour
	defaultHoldGuard = time.Minute
	minHoldGuard     = 100 * time.Millisecond
)

// Options are the values of the flags.
type Options struct {
	// Namespace of the operator.
	Namespace string
	// Pod is the pod of this process, by $POD_NAME. Its name is empty outside of a pod.
	Pod types.NamespacedName
	// LeaderElect elects one replica that decides. All replicas serve webhooks.
	LeaderElect bool
	// MetricsAddress and HealthAddress are the addresses of metrics and probes; "0" turns
	// either off.
	MetricsAddress, HealthAddress string
	// MetricsByNamespace counts workloads for each enrolled namespace.
	MetricsByNamespace bool
	// WebhookPort is the port of the webhooks.
	WebhookPort int
	// Certificates of the webhooks.
	Certificates Certificates
	// CallbackAddress is the address of callbacks; "0" turns it off. CallbackCertPath is the
	// directory of its certificate, empty for HTTP.
	CallbackAddress, CallbackCertPath string
	// CallbackPut serves the PUT paths, which ask for rollbacks.
	CallbackPut bool
	// ServerURL is the URL of AlterShield Server; empty for stand-alone.
	ServerURL string
	// TokenFile has the token that signs requests over HTTP: requests to and from the server,
	// and requests of other clients, also stand-alone. Empty for no token.
	TokenFile string
	altershield.Registration
	// MetricsEndpoint is the DefenseEndpoint that answers AlterShield Server's queries for metrics, and MetricsFrom are the
	// networks that may ask.
	MetricsEndpoint string
	MetricsFrom     []netip.Prefix
	// DenyCIDRs are networks that no probe and no query of a policy calls.
	DenyCIDRs []netip.Prefix
	// HoldStep is the time for which new pods of a held rollout do not count as available. HoldGuard is the time before its
	// end at which the operator extends it.
	HoldStep, HoldGuard time.Duration
	// PrintVersion prints the version and exits.
	PrintVersion bool
	// Log has the level and the form of the log.
	Log zap.Options
}

// Certificates describes the source of the webhooks' certificates.
type Certificates struct {
	// Dir has a certificate from elsewhere, in the files CertName and KeyName. The webhook
	// server reads them. With Dir the operator makes no certificate, and leaves the
	// authorities in the webhook configurations to others.
	Dir, CertName, KeyName string
	// Namespace of the operator. The Secret in it stores the certificates, and API servers
	// call the webhooks through the Service in it.
	Namespace, Secret, Service string
	// Mutating and Validating name the webhook configurations.
	Mutating, Validating string
	// Validity of serving certificates.
	Validity time.Duration
}

// Parse reads the flags. Its error names the flag and the remedy.
func Parse(args []string) (*Options, error) {
	o := &Options{}
	fs := flag.NewFlagSet("altershield-operator", flag.ContinueOnError)
	ctrl.RegisterFlags(fs)
	o.Log.BindFlags(fs)
	configurations := o.bind(fs)
	fs.SetOutput(io.Discard) // the caller prints an error once
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(os.Stdout)
			fmt.Println("Flags of the AlterShield Operator's manager:")
			fs.PrintDefaults()
		}
		return nil, err
	}
	if o.PrintVersion {
		return o, nil
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: the manager takes flags only, see --help; or begin with leave or settings", fs.Arg(0))
	}
	o.Pod = types.NamespacedName{Namespace: o.Namespace, Name: os.Getenv("POD_NAME")}
	o.Certificates.Namespace = o.Namespace
	o.Certificates.Mutating, o.Certificates.Validating, _ = strings.Cut(*configurations, ",")
	return o, o.validate()
}

// bind registers a flag for each option. It returns the names of the webhook configurations,
// which are two options in one flag.
func (o *Options) bind(fs *flag.FlagSet) (configurations *string) {
	fs.StringVar(&o.Namespace, "namespace", NamespaceDefault(),
		"`namespace` of the operator, of its OpsConfigInfo objects and of its lease (default $POD_NAMESPACE, else "+defaultNamespace+")")
	fs.BoolVar(&o.LeaderElect, "leader-elect", false, "elect one replica that decides; all replicas serve webhooks")
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", "0",
		"`address` of the metrics, over TLS, for authorized clients, as in :8443; 0 turns them off")
	fs.BoolVar(&o.MetricsByNamespace, "metrics-by-namespace", true,
		"count blocked and held workloads for each enrolled namespace; false gives one number for each kind, for very many namespaces")
	fs.Func("deny-cidrs",
		"`networks` that no probe and no query of a policy calls, such as the network of the nodes, separated by commas, as in "+
			"10.96.0.0/12,fd00:10::/32",
		networks(&o.DenyCIDRs))
	fs.DurationVar(&o.HoldStep, "hold-step", defaultHoldStep,
		"`duration` for which new pods of a held rollout do not count as available; the rollout waits as long if no replica of the operator "+
			"runs; "+minHoldStep.String()+" to "+maxHoldStep.String())
	fs.DurationVar(&o.HoldGuard, "hold-guard", defaultHoldGuard,
		"`duration` before the end of such a wait at which the operator extends the wait, longer than a change of leader takes; "+
			minHoldGuard.String()+" to --hold-step")
	fs.StringVar(&o.HealthAddress, "health-probe-bind-address", ":8081",
		"`address` of /healthz and /readyz; 0 turns them off")
	fs.BoolVar(&o.PrintVersion, "version", false, "print version and commit, and exit")
	o.bindServer(fs)
	return o.bindWebhooks(fs)
}

// networks returns the function of a flag with networks, separated by commas.
func networks(into *[]netip.Prefix) func(value string) error {
	return func(value string) error {
		for cidr := range strings.SplitSeq(value, ",") {
			if cidr = strings.TrimSpace(cidr); cidr == "" {
				continue
			}
			network, err := netip.ParsePrefix(cidr)
			if err != nil {
				return fmt.Errorf("%q is not a network: give an address and the length of its prefix, as in 10.0.0.0/8", cidr)
			}
			*into = append(*into, network.Masked())
		}
		return nil
	}
}

func (o *Options) bindWebhooks(fs *flag.FlagSet) (configurations *string) {
	fs.IntVar(&o.WebhookPort, "webhook-port", 9443, "`port` of the admission webhooks")
	fs.StringVar(&o.Certificates.Dir, "webhook-cert-path", "",
		"`directory` of the certificate and the key of the webhooks, read again when they change; "+
			"empty: the operator makes, renews and injects certificates")
	fs.StringVar(&o.Certificates.CertName, "webhook-cert-name", "tls.crt", "`file` name of the webhooks' certificate")
	fs.StringVar(&o.Certificates.KeyName, "webhook-key-name", "tls.key", "`file` name of the webhooks' key")
	fs.StringVar(&o.Certificates.Secret, "webhook-cert-secret", defaultCertSecret,
		"`name` of the Secret with the certificates that the operator makes for the webhooks")
	fs.StringVar(&o.Certificates.Service, "webhook-service", defaultService,
		"`name` of the Service through which API servers call the webhooks, port 443")
	configurations = fs.String("webhook-configurations", defaultConfigurations,
		"`names` of the mutating and of the validating webhook configuration, separated by a comma; the operator restores both, "+
			"and those of declared kinds, which have the same prefix")
	fs.DurationVar(&o.Certificates.Validity, "webhook-cert-validity", defaultCertValidity,
		"`duration` for which a certificate of the operator is valid, its authority ten times as long; at least "+minCertValidity.String())
	return configurations
}

func (o *Options) bindServer(fs *flag.FlagSet) {
	fs.StringVar(&o.CallbackAddress, "callback-bind-address", ":8080",
		"`address` of the callbacks of AlterShield Server; 0 turns it off")
	fs.StringVar(&o.CallbackCertPath, "callback-cert-path", "",
		"`directory` of tls.crt and tls.key of the callback address, read again when they change; empty serves HTTP")
	fs.BoolVar(&o.CallbackPut, "callback-put", true,
		"serve the PUT paths of the callback address, which ask for rollbacks; =false turns them off")
	fs.StringVar(&o.ServerURL, "altershield-url", "",
		"`URL` of AlterShield Server, as in http://altershield:8080; empty means stand-alone, without its checks")
	fs.StringVar(&o.TokenFile, "altershield-token-file", "",
		"`file` with the token shared with AlterShield Server, of at least "+strconv.Itoa(altershield.MinToken)+
			" bytes; two lines during a rotation, the first signs; read again when it changes; without a token every callback and every "+
			"other signed request is refused, stand-alone as well")
	fs.StringVar(&o.Platform, "altershield-platform", altershield.DefaultPlatform,
		"`platform` as which the operator is registered at AlterShield Server")
	fs.StringVar(&o.Scene, "altershield-scene", altershield.DefaultScene, "`key` of the registered scene of generation G2")
	fs.StringVar(&o.AdmissionScene, "altershield-admission-scene", "",
		"`key` of a registered scene of generation G1, for the admission check; empty means no check")
	fs.StringVar(&o.Tenant, "altershield-tenant", altershield.DefaultTenant, "`tenant` code at AlterShield Server")
	fs.StringVar(&o.Phase, "altershield-phase", altershield.PhaseProd,
		"`phase` of the releases of this cluster: "+strings.Join(altershield.Phases(), ", "))
	fs.StringVar(&o.TargetType, "altershield-target-type", altershield.DefaultTargetType,
		"registered `type` of the pods that a release changes")
	fs.StringVar(&o.MetricsEndpoint, "altershield-metrics-endpoint", "",
		"`name` of the DefenseEndpoint of type Prometheus, in the operator's namespace, that answers AlterShield Server's queries for metrics")
	fs.Func("altershield-metrics-from",
		"`networks` from which AlterShield Server may query metrics, unsigned, separated by commas, as in 192.0.2.10/32; empty refuses all",
		networks(&o.MetricsFrom))
}

// NamespaceDefault returns the namespace of the operator without a flag.
func NamespaceDefault() string {
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	return defaultNamespace
}

func (o *Options) validate() error {
	if problems := validation.IsDNS1123Label(o.Namespace); len(problems) > 0 {
		return fmt.Errorf("--namespace %q is not the name of a namespace: %s", o.Namespace, strings.Join(problems, "; "))
	}
	if o.WebhookPort < 1 || o.WebhookPort > 65535 {
		return fmt.Errorf("--webhook-port %d is not a port: give a number from 1 to 65535", o.WebhookPort)
	}
	for name, address := range map[string]string{
		"metrics-bind-address":      o.MetricsAddress,
		"health-probe-bind-address": o.HealthAddress,
		"callback-bind-address":     o.CallbackAddress,
	} {
		if address == "0" {
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("--%s %q is not an address: give host:port, :port, or 0 to turn it off", name, address)
		}
	}
	if err := o.Certificates.validate(); err != nil {
		return err
	}
	if err := o.validateHold(); err != nil {
		return err
	}
	return o.validateServer()
}

// validateHold checks the times of held rollouts.
func (o *Options) validateHold() error {
	if o.HoldStep < minHoldStep || o.HoldStep > maxHoldStep {
		return fmt.Errorf("--hold-step %s is out of bounds: give a duration from %s to %s", o.HoldStep, minHoldStep, maxHoldStep)
	}
	if o.HoldGuard < minHoldGuard || o.HoldGuard > o.HoldStep {
		return fmt.Errorf("--hold-guard %s is out of bounds: give a duration from %s to --hold-step, %s", o.HoldGuard, minHoldGuard, o.HoldStep)
	}
	return nil
}

func (c *Certificates) validate() error {
	if c.Dir != "" {
		for flagName, file := range map[string]string{
			"webhook-cert-name": c.CertName,
			"webhook-key-name":  c.KeyName,
		} {
			path := filepath.Join(c.Dir, file)
			if _, err := os.Stat(path); err != nil {
				return fmt.Errorf("--webhook-cert-path, --%s: %w; the webhooks need a certificate and its key there", flagName, err)
			}
		}
	}
	for _, f := range []struct{ name, value string }{
		{"webhook-cert-secret", c.Secret},
		{"webhook-configurations", c.Mutating},
		{"webhook-configurations", c.Validating},
	} {
		if problems := validation.IsDNS1123Subdomain(f.value); len(problems) > 0 {
			return fmt.Errorf("--%s: %q is not a name: %s", f.name, f.value, strings.Join(problems, "; "))
		}
	}
	if problems := validation.IsDNS1035Label(c.Service); len(problems) > 0 {
		return fmt.Errorf("--webhook-service %q is not the name of a service: %s", c.Service, strings.Join(problems, "; "))
	}
	if c.Dir == "" && c.Validity < minCertValidity {
		return fmt.Errorf("--webhook-cert-validity %s is too short: give at least %s", c.Validity, minCertValidity)
	}
	return nil
}

// validateServer checks the options of AlterShield Server and of the callback address.
func (o *Options) validateServer() error {
	if o.CallbackCertPath != "" {
		for _, file := range []string{"tls.crt", "tls.key"} {
			if _, err := os.Stat(filepath.Join(o.CallbackCertPath, file)); err != nil {
				return fmt.Errorf("--callback-cert-path: %w; give a directory with tls.crt and tls.key, or leave it empty to serve HTTP", err)
			}
		}
	}
	if o.TokenFile != "" {
		if _, err := altershield.NewTokenFile(o.TokenFile, clock.RealClock{}).Tokens(); err != nil {
			return fmt.Errorf("--altershield-token-file: %w", err)
		}
	}
	switch problems := validation.IsDNS1123Subdomain(o.MetricsEndpoint); {
	case (o.MetricsEndpoint == "") != (len(o.MetricsFrom) == 0):
		return errors.New("--altershield-metrics-endpoint and --altershield-metrics-from: give both, or neither")
	case o.MetricsEndpoint != "" && len(problems) > 0:
		return fmt.Errorf("--altershield-metrics-endpoint %q is not the name of an object: %s", o.MetricsEndpoint, strings.Join(problems, "; "))
	}
	if o.ServerURL == "" {
		return nil
	}
	if _, err := altershield.New(altershield.Options{URL: o.ServerURL, Platform: altershield.DefaultPlatform}); err != nil {
		return fmt.Errorf("--altershield-url %q: %w", o.ServerURL, err)
	}
	if !slices.Contains(altershield.Phases(), o.Phase) {
		return fmt.Errorf("--altershield-phase %q is not one of %s", o.Phase, strings.Join(altershield.Phases(), ", "))
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"platform", o.Platform, altershield.MaxPlatform},
		{"scene", o.Scene, altershield.MaxChangeSceneKey},
		{"tenant", o.Tenant, math.MaxInt},
		{"target-type", o.TargetType, math.MaxInt},
	} {
		if strings.TrimSpace(f.value) == "" || len(f.value) > f.limit {
			return fmt.Errorf("--altershield-%s %q is empty or too long: give the value registered with AlterShield Server", f.name, f.value)
		}
	}
	if len(o.AdmissionScene) > altershield.MaxChangeSceneKey {
		return fmt.Errorf("--altershield-admission-scene has %d bytes, AlterShield Server accepts at most %d",
			len(o.AdmissionScene), altershield.MaxChangeSceneKey)
	}
	return nil
}

// Summary returns the fields of the first log line, as pairs: the namespace, the server, and
// the requests over HTTP that are served.
func (o *Options) Summary() []any {
	server, requests := o.ServerURL, "callbacks, suspend list and rollback, signed"
	if server == "" {
		server, requests = "none: stand-alone", "suspend list and rollback, signed"
	}
	if !o.CallbackPut {
		requests = strings.Replace(requests, " and rollback, signed", ", signed; no rollback: --callback-put is false", 1)
	}
	switch {
	case o.CallbackAddress == "0":
		requests = "none: --callback-bind-address is 0"
	case o.TokenFile == "":
		requests = "liveTest only: without --altershield-token-file all others are refused"
	}
	return []any{"namespace", o.Namespace, "server", server, "requests", requests}
}

// Tokens returns the source of the tokens shared with AlterShield Server and with other clients; nil without a token
// file. It logs when the file becomes unusable, and when the file can be used again.
func (o *Options) Tokens(log logr.Logger) altershield.TokenSource {
	if o.TokenFile == "" {
		return nil
	}
	f := altershield.NewTokenFile(o.TokenFile, clock.RealClock{})
	f.OnChange = func(err error) {
		if err != nil {
			log.Error(err, "the token file cannot be used: its last good tokens stay in force", "file", o.TokenFile)
			return
		}
		log.Info("the token file can be used again", "file", o.TokenFile)
	}
	return f
}
