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

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EndpointType is the protocol of an endpoint.
// +kubebuilder:validation:Enum=Prometheus;HTTP;Alertmanager
type EndpointType string

const (
	// EndpointPrometheus means the query API of Prometheus, also of Thanos,
	// Mimir or VictoriaMetrics.
	EndpointPrometheus EndpointType = "Prometheus"
	// EndpointHTTP means POST to a service that answers with JSON, for checks of
	// type service.
	EndpointHTTP EndpointType = "HTTP"
	// EndpointAlertmanager means the API v2 of Alertmanager. Each address of the
	// host gets the alerts.
	EndpointAlertmanager EndpointType = "Alertmanager"
)

// NamespacesFrom selects namespaces.
// +kubebuilder:validation:Enum=All;Same;Selector
type NamespacesFrom string

const (
	// NamespacesAll means all enrolled namespaces.
	NamespacesAll NamespacesFrom = "All"
	// NamespacesSame means the namespace of the endpoint.
	NamespacesSame NamespacesFrom = "Same"
	// NamespacesSelector means the namespaces that a selector selects.
	NamespacesSelector NamespacesFrom = "Selector"
)

// EndpointSecretLabel marks Secrets that endpoints may use, with the value
// "true". No other Secret is used.
const EndpointSecretLabel = "altershield.defense.antgroup.com/endpoint"

// DefenseEndpointSpec says where a service is, and how to log in.
type DefenseEndpointSpec struct {
	// Protocol of the endpoint.
	Type EndpointType `json:"type"`
	// Address with http or https, and a path if the API is below one; without
	// user, query and fragment.
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9._~/-]*)?$`
	URL string `json:"url"`
	// Namespaces whose policies may use the endpoint; all if absent. Policies of
	// the operator's namespace may always use it.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`
	// Credentials.
	// +optional
	Auth *EndpointAuth `json:"auth,omitempty"`
	// Certificates. Without it, the certificate authorities of the system count.
	// +optional
	TLS *EndpointTLS `json:"tls,omitempty"`
	// Headers of each request, as X-Scope-OrgID of Mimir.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	Headers map[string]HeaderValue `json:"headers,omitempty"`
	// Labels and interval of a Prometheus.
	// +optional
	Prometheus *EndpointPrometheusOptions `json:"prometheus,omitempty"`
	// Limits of the calls of each replica of the operator.
	// +optional
	Limits *EndpointLimits `json:"limits,omitempty"`
}

// AllowedNamespaces selects the namespaces whose policies may use an endpoint.
//
// +kubebuilder:validation:XValidation:rule="(self.from == 'Selector') == has(self.selector)",message="selector selects namespaces exactly when from is Selector: give both, or neither",fieldPath=".selector"
type AllowedNamespaces struct {
	// All, Same or Selector.
	// +optional
	// +kubebuilder:default=All
	From NamespacesFrom `json:"from,omitempty"`
	// Selector of namespaces by their labels, only with from Selector.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// HeaderValue is the value of a header of a request.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=256
// +kubebuilder:validation:Pattern=`^[!-~]([ -~]*[!-~])?$`
type HeaderValue string

// SecretReference names a Secret of the endpoint's own namespace. It needs the
// label altershield.defense.antgroup.com/endpoint with the value "true".
type SecretReference struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// EndpointAuth logs in by exactly one of secretRef and oauth2.
//
// +kubebuilder:validation:ExactlyOneOf=secretRef;oauth2
type EndpointAuth struct {
	// Secret with the key token for a bearer token, or with the keys username and
	// password. At type HTTP its key signingKey signs requests as Standard Webhooks
	// do, with or without a login: 24 to 64 bytes in base64.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// Client credentials of OAuth 2.0.
	// +optional
	OAuth2 *EndpointOAuth2 `json:"oauth2,omitempty"`
}

// EndpointOAuth2 gets tokens by client credentials.
type EndpointOAuth2 struct {
	// Secret with the keys clientID and clientSecret.
	SecretRef SecretReference `json:"secretRef"`
	// Address that issues tokens, with https or http.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9._~/-]*)?$`
	TokenURL string `json:"tokenURL"`
	// Scopes of the tokens.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	Scopes []string `json:"scopes,omitempty"`
}

// EndpointTLS has the certificates of an endpoint. Certificates are always
// verified.
type EndpointTLS struct {
	// Secret with the key ca.crt: the authorities of the endpoint's certificate.
	// +optional
	CASecretRef *SecretReference `json:"caSecretRef,omitempty"`
	// Secret with the keys tls.crt and tls.key: the operator's certificate for
	// the endpoint.
	// +optional
	CertSecretRef *SecretReference `json:"certSecretRef,omitempty"`
	// Name in the endpoint's certificate; the host of url if absent.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`
	ServerName string `json:"serverName,omitempty"`
}

// EndpointPrometheusOptions describe the series of a Prometheus.
//
// +kubebuilder:validation:XValidation:rule="duration(self.scrapeInterval) >= duration('1s') && duration(self.scrapeInterval) <= duration('5m')",message="scrapeInterval is a duration from 1s to 5m",fieldPath=".scrapeInterval"
type EndpointPrometheusOptions struct {
	// Label of series that has the name of their pod.
	// +optional
	// +kubebuilder:default=pod
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9_]*$`
	PodLabel string `json:"podLabel,omitempty"`
	// Label of series that has the namespace of their pod. Queries of a policy of
	// another namespace than the operator's read only series whose label has that
	// namespace.
	// +optional
	// +kubebuilder:default=namespace
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9_]*$`
	NamespaceLabel string `json:"namespaceLabel,omitempty"`
	// Time between two samples of a series, 1s to 5m.
	// +optional
	// +kubebuilder:default="30s"
	ScrapeInterval *metav1.Duration `json:"scrapeInterval,omitempty"`
}

// EndpointLimits bound the calls of an endpoint by one replica of the operator.
type EndpointLimits struct {
	// Calls per second.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	QPS int32 `json:"qps,omitempty"`
	// Calls at a time.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	Concurrency int32 `json:"concurrency,omitempty"`
	// Size of a response, 1Ki to 64Mi. A larger response is an error.
	// +optional
	// +kubebuilder:default="4Mi"
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]{0,3}Ki|([1-9]|[1-5][0-9]|6[0-4])Mi)$`
	ResponseBytes string `json:"responseBytes,omitempty"`
}

// DefenseEndpointStatus reports whether the endpoint can be used.
type DefenseEndpointStatus struct {
	// metadata.generation that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Accepted reports whether spec and its Secrets are correct, Reachable whether
	// the endpoint answers.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DefenseEndpoint is a service that policies use: checks ask it, or it gets
// alerts. Only endpoints in the operator's namespace count. The name has at most
// 63 characters.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=defenseendpoints,singular=defenseendpoint,scope=Namespaced,shortName=dend,categories=altershield
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name of an endpoint has at most 63 characters"
// +kubebuilder:printcolumn:name="TYPE",type=string,JSONPath=`.spec.type`,description="Protocol"
// +kubebuilder:printcolumn:name="ACCEPTED",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,description="Whether spec and its Secrets are correct"
// +kubebuilder:printcolumn:name="REACHABLE",type=string,JSONPath=`.status.conditions[?(@.type=="Reachable")].status`,description="Whether the endpoint answers"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="URL",type=string,priority=1,JSONPath=`.spec.url`,description="Address"
// +kubebuilder:printcolumn:name="REASON",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Reachable")].reason`,description="Reason of REACHABLE"
type DefenseEndpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Address, credentials and limits.
	Spec DefenseEndpointSpec `json:"spec"`
	// Whether the endpoint can be used.
	Status DefenseEndpointStatus `json:"status,omitempty"`
}

// DefenseEndpointList is a list of DefenseEndpoints.
//
// +kubebuilder:object:root=true
type DefenseEndpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DefenseEndpoint `json:"items"`
}
