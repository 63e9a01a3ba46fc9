module github.com/traas-stack/altershield-operator/hack/kinds

go 1.26.8

require (
	github.com/argoproj/argo-rollouts v1.9.2
	github.com/kserve/kserve v0.20.0
	github.com/openkruise/kruise v1.8.3
	github.com/ray-project/kuberay/ray-operator v1.6.2
	istio.io/api v1.32.0
	knative.dev/serving v0.51.0
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/lws v0.9.0
)
