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
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

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
	// minCertValidity leaves a slow replica seconds to renew one.
	minCertValidity = 10 * time.Second
)

// Options are the values of the flags.
type Options struct {
	// Namespace of the operator.
	Namespace string
	// Pod is the one this runs in, by $POD_NAME; its name is empty in none.
	Pod types.NamespacedName
	// LeaderElect: of several replicas one decides; all serve webhooks.
	LeaderElect bool
	// MetricsAddress and HealthAddress are where metrics and probes are
	// served; "0" turns either off.
	MetricsAddress, HealthAddress string
	// WebhookPort is where the webhooks are served.
	WebhookPort int
	// WebhookCertPath is the directory of the webhooks' certificate and key;
	// empty when the operator makes and renews them itself.
	WebhookCertPath, WebhookCertName, WebhookKeyName string
	// WebhookCertSecret and WebhookService are, in the operator's namespace,
	// where certificates it makes are kept, and the service they are made for.
	WebhookCertSecret, WebhookService string
	// MutatingConfiguration and ValidatingConfiguration name the webhook
	// configurations that have to know them.
	MutatingConfiguration, ValidatingConfiguration string
	// WebhookCertValidity is how long serving certificates are valid.
	WebhookCertValidity time.Duration
	// CallbackAddress is where AlterShield Server calls back; "0" turns it off.
	// CallbackCertPath is the directory of its certificate, empty for HTTP.
	CallbackAddress, CallbackCertPath string
	// ServerURL of AlterShield Server; empty for stand-alone.
	ServerURL string
	// TokenFile has the token shared with the server; empty for none.
	TokenFile string
	// Platform, Scene, Tenant, Phase and TargetType are what the operator is
	// registered with at the server; AdmissionScene is empty for none.
	Platform, Scene, AdmissionScene, Tenant, Phase, TargetType string
	// PrintVersion and end.
	PrintVersion bool
	// Log says how much is logged, and in which form.
	Log zap.Options
}

// Parse reads the flags. Its error names the flag and the remedy.
func Parse(args []string) (*Options, error) {
	o := &Options{}
	fs := flag.NewFlagSet("altershield-operator", flag.ContinueOnError)
	ctrl.RegisterFlags(fs)
	o.Log.BindFlags(fs)
	fs.StringVar(&o.Namespace, "namespace", namespaceDefault(), "`namespace` of the operator, where its OpsConfigInfo objects and its lease are (default $POD_NAMESPACE, else "+defaultNamespace+")")
	fs.BoolVar(&o.LeaderElect, "leader-elect", false, "elect one of several replicas to decide; all serve webhooks")
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", "0", "`address` metrics are served on over TLS, to authorized clients, as in :8443; 0 turns them off")
	fs.StringVar(&o.HealthAddress, "health-probe-bind-address", ":8081", "`address` /healthz and /readyz are served on; 0 turns them off")
	fs.IntVar(&o.WebhookPort, "webhook-port", 9443, "`port` the admission webhooks are served on")
	fs.StringVar(&o.WebhookCertPath, "webhook-cert-path", "", "`directory` of the certificate and key the webhooks are served with, re-read when they change; empty makes, renews and injects them")
	fs.StringVar(&o.WebhookCertName, "webhook-cert-name", "tls.crt", "`file` name of the webhooks' certificate")
	fs.StringVar(&o.WebhookKeyName, "webhook-key-name", "tls.key", "`file` name of the webhooks' key")
	fs.StringVar(&o.WebhookCertSecret, "webhook-cert-secret", defaultCertSecret, "`name` of the Secret with the certificates made for the webhooks")
	fs.StringVar(&o.WebhookService, "webhook-service", defaultService, "`name` of the service the webhooks are called through, port 443")
	configurations := fs.String("webhook-configurations", defaultConfigurations, "`names` of the mutating and of the validating webhook configuration, mutating,validating; kept as they are meant to be")
	fs.DurationVar(&o.WebhookCertValidity, "webhook-cert-validity", defaultCertValidity, "`duration` a certificate made for the webhooks is valid, its authority ten times as long; at least "+minCertValidity.String())
	fs.StringVar(&o.CallbackAddress, "callback-bind-address", ":8080", "`address` AlterShield Server calls back on; 0 turns it off")
	fs.StringVar(&o.CallbackCertPath, "callback-cert-path", "", "`directory` of tls.crt and tls.key the callback address is served with, re-read when they change; empty serves HTTP")
	fs.StringVar(&o.ServerURL, "altershield-url", "", "`URL` of AlterShield Server, as in http://altershield:8080; empty runs stand-alone, without checks")
	fs.StringVar(&o.TokenFile, "altershield-token-file", "", "`file` with the token shared with AlterShield Server, of at least "+strconv.Itoa(altershield.MinToken)+" bytes; two lines during a rotation, the first signs; re-read when it changes; without one no callback is accepted")
	fs.StringVar(&o.Platform, "altershield-platform", altershield.DefaultPlatform, "`platform` the operator is registered as at AlterShield Server")
	fs.StringVar(&o.Scene, "altershield-scene", altershield.DefaultScene, "`key` of the registered scene of generation G2")
	fs.StringVar(&o.AdmissionScene, "altershield-admission-scene", "", "`key` of a registered scene of generation G1, for the admission check; empty leaves it out")
	fs.StringVar(&o.Tenant, "altershield-tenant", altershield.DefaultTenant, "`tenant` code at AlterShield Server")
	fs.StringVar(&o.Phase, "altershield-phase", altershield.PhaseProd, "`phase` releases of this cluster are in: "+strings.Join(altershield.Phases(), ", "))
	fs.StringVar(&o.TargetType, "altershield-target-type", altershield.DefaultTargetType, "registered `type` of the pods a release changes")
	fs.BoolVar(&o.PrintVersion, "version", false, "print version and commit and end")
	fs.SetOutput(io.Discard) // an error is told once, by the caller
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
		return nil, fmt.Errorf("unexpected argument %q: the manager takes flags only, see --help", fs.Arg(0))
	}
	o.Pod = types.NamespacedName{Namespace: o.Namespace, Name: os.Getenv("POD_NAME")}
	o.MutatingConfiguration, o.ValidatingConfiguration, _ = strings.Cut(*configurations, ",")
	return o, o.validate()
}

func namespaceDefault() string {
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
	if err := o.validateCertificates(); err != nil {
		return err
	}
	return o.validateServer()
}

// validateCertificates checks where the webhooks' certificates come from.
func (o *Options) validateCertificates() error {
	if o.WebhookCertPath != "" {
		for flagName, file := range map[string]string{
			"webhook-cert-name": o.WebhookCertName,
			"webhook-key-name":  o.WebhookKeyName,
		} {
			path := filepath.Join(o.WebhookCertPath, file)
			if _, err := os.Stat(path); err != nil {
				return fmt.Errorf("--webhook-cert-path, --%s: %w; the webhooks need a certificate and its key there", flagName, err)
			}
		}
	}
	for _, f := range []struct{ name, value string }{
		{"webhook-cert-secret", o.WebhookCertSecret},
		{"webhook-configurations", o.MutatingConfiguration},
		{"webhook-configurations", o.ValidatingConfiguration},
	} {
		if problems := validation.IsDNS1123Subdomain(f.value); len(problems) > 0 {
			return fmt.Errorf("--%s: %q is not a name: %s", f.name, f.value, strings.Join(problems, "; "))
		}
	}
	if problems := validation.IsDNS1035Label(o.WebhookService); len(problems) > 0 {
		return fmt.Errorf("--webhook-service %q is not the name of a service: %s", o.WebhookService, strings.Join(problems, "; "))
	}
	if o.WebhookCertPath == "" && o.WebhookCertValidity < minCertValidity {
		return fmt.Errorf("--webhook-cert-validity %s is too short: give at least %s", o.WebhookCertValidity, minCertValidity)
	}
	return nil
}

// validateServer checks what connects the operator with AlterShield Server.
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
	if o.ServerURL == "" {
		return nil
	}
	if _, err := altershield.New(altershield.Options{URL: o.ServerURL, Platform: altershield.DefaultPlatform}); err != nil {
		return fmt.Errorf("--altershield-url %q: %w", o.ServerURL, err)
	}
	if !slices.Contains(altershield.Phases(), o.Phase) {
		return fmt.Errorf("--altershield-phase %q is none of %s", o.Phase, strings.Join(altershield.Phases(), ", "))
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
			return fmt.Errorf("--altershield-%s %q is empty or too long: give what is registered with AlterShield Server", f.name, f.value)
		}
	}
	if len(o.AdmissionScene) > altershield.MaxChangeSceneKey {
		return fmt.Errorf("--altershield-admission-scene has %d bytes, AlterShield Server takes at most %d", len(o.AdmissionScene), altershield.MaxChangeSceneKey)
	}
	return nil
}

// Tokens are those shared with AlterShield Server; nil when there is no file of
// them. A file that turns bad is told to onChange, and nil when it is good again.
func (o *Options) Tokens(onChange func(error)) altershield.TokenSource {
	if o.TokenFile == "" {
		return nil
	}
	f := altershield.NewTokenFile(o.TokenFile, clock.RealClock{})
	f.OnChange = onChange
	return f
}
