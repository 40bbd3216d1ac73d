# The image, for those who build it with Docker or Podman: docker build --build-arg VERSION=$(git describe --tags --always) -t headpond .
# `make image` makes the same without either, and the same each time.
FROM golang:1.27 AS build
ARG VERSION=unknown
WORKDIR /src
COPY . .
RUN make build VERSION=$VERSION && mkdir /state

FROM scratch
COPY --from=build /src/bin/headpond /headpond
COPY --from=build /src/LICENSE /licenses/LICENSE
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chown=65532:65532 /state /var/lib/headpond
USER 65532:65532
ENV PATH=/
WORKDIR /var/lib/headpond
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s --retries=3 CMD ["/headpond","ctl","health"]
ENTRYPOINT ["/headpond"]
CMD ["serve","-watch","/etc/headpond/headpond.yaml"]
