# syntax=docker/dockerfile:1

# `make image` makes the same without a container engine; hack/release tests that both agree.

FROM --platform=$BUILDPLATFORM golang:1.26.8 AS builder
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
ARG COMMIT=unknown
WORKDIR /workspace

# The modules change more rarely than the code and get a layer of their own.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod \
    go mod download

# .dockerignore lets through exactly what the manager is built from.
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} \
    go build -trimpath -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" -o /manager .

FROM gcr.io/distroless/static:nonroot
ARG VERSION=dev
ARG COMMIT=unknown
# When the commit was made, as in 2026-01-31T12:00:00Z.
ARG CREATED
LABEL org.opencontainers.image.title="AlterShield Operator" \
      org.opencontainers.image.description="Verifies each release of a workload while it rolls out, and stops or rolls back what is bad." \
      org.opencontainers.image.source="https://github.com/traas-stack/altershield-operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.created="${CREATED}"
COPY --from=builder /manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
